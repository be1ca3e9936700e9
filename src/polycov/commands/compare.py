"""``polycov compare``: which pooling to use, and at what size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polycov.comparing.grid import METHODS
from polycov.data.broken import Broken
from polycov.models.weights import OFFLINE_BACKBONE

Head = Literal["probe", "train", "finetune"]


@dataclass
class Compare:
    """Compare methods of pooling on your pictures, with error bars: which to use, and at what size.

    Stopped or killed, the same command goes on where it was. Several processes share the work (--jobs, or a launcher).
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "typefaces"
    """Pictures, as for train; by default the built-in typefaces."""
    backbone: str = OFFLINE_BACKBONE
    """A network of timm (polycov list backbones)."""
    weights: str = "auto"
    """Its weights, as for train."""
    stage: Literal["auto", "last"] | int = "auto"
    """Its stage, as for train."""
    size: int | None = None
    """Side of the pictures; by default 320, and for typefaces their own 256."""
    methods: str = ",".join(METHODS)
    """Methods or specs, separated by commas; fewer-channels is the full triangle on fewer channels."""
    dims: str = "512,1024,2048,4096,8192"
    """Dimensions of the methods in which they are free."""
    seeds: int = 5
    """How many seeds; each decides the validation part and the sketch."""
    head: Head = "probe"
    """probe: closed form on the frozen backbone. train: the layers on top are trained. finetune: everything is."""
    channels: int | None = None
    """Channels before second-order pools; by default 128 with the probe, else 256."""
    recipe: Path | None = None
    """With --head train or finetune: a TOML file with options of training."""
    epochs: int | None = None
    """With --head train or finetune: by default as the recipe says, or 20."""
    val_fraction: float = 0.2
    """Part of the training pictures held out for validation."""
    test_fraction: float = 0.3
    """Part held out for the test where the data have no test part."""
    broken: Broken = "stop"
    """What to do about pictures that cannot be read."""
    workers: int = 2
    """Processes that prepare pictures."""
    jobs: int = 1
    """Processes that share the settings."""
    out: Path | None = None
    """Folder of the comparison; by default one in runs, the same for the same data, backbone and head."""
    cache: Path | None = None
    """Folder for local features; by default POLYCOV_CACHE, or ~/.cache/polycov."""


def run(options: Compare) -> None:
    """Compares, and writes the report."""
    from polycov.comparing.comparison import Comparison

    Comparison(options).run()
