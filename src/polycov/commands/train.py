"""``polycov train``."""

from dataclasses import dataclass, field
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.training.config import (
    Config,
    ImageOptions,
    NetworkOptions,
    PoolingOptions,
    RuntimeOptions,
    SplitOptions,
    TrainOptions,
    read_recipe,
)
from polycov.training.run_folder import RunFolder
from polycov.training.train import train


@dataclass(frozen=True)
class Train:
    """Train a classifier on images: end to end, on a frozen backbone (--freeze), or in closed form (--probe).

    On several GPUs or machines: accelerate launch -m polycov train …
    """

    data: str = "typefaces"
    """A folder (train/CLASS and test/CLASS, CLASS alone, CUB-200-2011, FGVC-Aircraft or Stanford Cars as published, or
    tar shards), hfds/NAME, wds/FOLDER, or the built-in typefaces."""
    recipe: Path | None = None
    """A TOML file with options; those on the command line take precedence."""
    resume: Path | None = None
    """Resume this run, which was interrupted."""
    out: Path | None = None
    """Folder of the run; default: a new one in runs."""
    cache: Path | None = None
    """Folder for local features; default: POLYCOV_CACHE, or the user's cache folder."""
    images: ImageOptions = field(default_factory=ImageOptions)
    split: SplitOptions = field(default_factory=SplitOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    pooling: PoolingOptions = field(default_factory=PoolingOptions)
    training: TrainOptions = field(default_factory=TrainOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)


def run(arguments: list[str]) -> None:
    """Trains."""
    start = _start(arguments)
    options = parse(
        Train, "train", arguments, positional={"data": "DATA"}, lists=("milestones",), default=_with_config(start)
    )
    config = Config(
        data=options.data,
        images=options.images,
        split=options.split,
        network=options.network,
        pooling=options.pooling,
        training=options.training,
        runtime=options.runtime,
    )
    folder, resume = options.resume or options.out, options.resume is not None
    train(config, folder, resume=resume, cache=options.cache, progress=Terminal().progress)


def _with_config(config: Config) -> Train:
    return Train(
        data=config.data,
        images=config.images,
        split=config.split,
        network=config.network,
        pooling=config.pooling,
        training=config.training,
        runtime=config.runtime,
    )


def _start(arguments: list[str]) -> Config:
    """The options set by a recipe or by the run to resume, before those of the command line."""
    recipe, resume = (_value(arguments, flag) for flag in ("--recipe", "--resume"))
    if resume is not None:
        return RunFolder(resume).read_config()
    return read_recipe(Path(recipe)) if recipe is not None else Config()


def _value(arguments: list[str], flag: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
    return None
