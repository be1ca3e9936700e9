"""The options of a comparison."""

import dataclasses
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from polycov.comparing.grid import DIMS, METHODS
from polycov.comparing.protocols.choose import TRAINED, Head, make_protocol
from polycov.comparing.protocols.protocol import Protocol
from polycov.engines.engine import EngineOptions
from polycov.errors import PolycovError
from polycov.models.head import DEFAULT_CHANNELS, PROBE_CHANNELS
from polycov.system.structure import Structured
from polycov.training.config import (
    Config,
    ImageOptions,
    NetworkOptions,
    RuntimeOptions,
    SplitOptions,
    read_recipe,
    read_toml,
    replace_options,
)

OVERRIDES = ("epochs", "lr", "backbone_lr")  # of a recipe
HEAD_FLAGS = {"train": ["--freeze"], "finetune": []}  # of polycov train; a probe for the others


@dataclass(frozen=True)
class EpisodeOptions(Structured):
    """With --head fewshot: the episodes."""

    ways: int = 5
    """Classes of an episode."""
    shots: int = 1
    """Labelled images of each class."""
    episodes: int = 600
    """Episodes for each seed, the same for all methods."""


@dataclass(frozen=True)
class CompareOptions(Structured):
    """Compare pooling methods on your images, with error bars: which to use, and at what size.

    Run the same command again to resume after an interruption. Several processes share the work (--jobs), or several
    machines (--engine ray).
    """

    data: str = "typefaces"
    """Images, as for train: a folder with a folder per class, for example."""
    methods: tuple[str, ...] = METHODS
    """Methods or specs; fewer-channels is the full triangle on fewer channels, average-last the average of the last
    layer of the network."""
    dims: tuple[int, ...] = DIMS
    """Dimensions, for the methods where they are free."""
    seeds: int = 5
    """Number of seeds; each determines the validation images and the sketch."""
    head: Head = "probe"
    """probe: closed form on the frozen backbone. train: the layers on top are trained. finetune: everything is. knn:
    nearest neighbours. fewshot: episodes with prototypes. retrieval: recall and mean average precision."""
    unseen_classes: float = 0.0
    """Share of the classes that nothing is fitted to, drawn for each seed. knn, fewshot and retrieval judge these
    classes alone; probe adds retrieval among them to its accuracy."""
    channels: int | None = None
    """Channels before second-order pools; default 128 with the probe, else 256."""
    store_channels: int | None = None
    """Principal components of the local features to keep on disk, 0 for all channels; default: all, or with the probe
    256 of features that take more than 1 MB per image."""
    recipe: Path | None = None
    """With --head train or finetune: options in TOML, a file or a recipe of the package such as cub-resnet50."""
    epochs: int | None = None
    """With --head train or finetune: default 20, or what the recipe says."""
    lr: float | None = None
    """With --head train or finetune: learning rate of the new layers; default 0.05, or what the recipe says."""
    backbone_lr: float | None = None
    """With --head finetune: learning rate of the backbone; default 0.01, or what the recipe says."""
    explain: bool = True
    """Explain some mistakes of the recommended feature, on a page beside the report."""
    quantize: bool = True
    """Measure the recommended feature in fewer bytes: float16, int8, and product codes if faiss is installed."""
    out: Path | None = None
    """Folder of the comparison; default: one in runs, the same for the same data, backbone and head."""
    cache: Path | None = None
    """Folder for local features; default: POLYCOV_CACHE, or the user's cache folder."""
    images: ImageOptions = field(default_factory=ImageOptions)
    split: SplitOptions = field(default_factory=SplitOptions)
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def with_recipe(self, path: Path) -> Self:
        """Returns the options with the image size and backbone of a recipe; its other options apply to training.

        Its splits do not: a recipe may have no validation images, on which a comparison chooses. Its table ``compare``
        has options of the comparison itself.

        Raises:
            PolycovError: if it is missing, is not TOML, or has an unknown option or a value of another type.
        """
        recipe, own = read_recipe(path), read_toml(path).get("compare", {})
        if not isinstance(own, dict):
            raise PolycovError(f"Expected a table [compare] in {path.name}, got {own!r}.")
        chosen: Self = replace_options(replace(self, recipe=path, images=recipe.images, network=recipe.network), own)
        return chosen

    def config(self) -> Config:
        """Returns the training configuration; a probe takes only the data and the model from it.

        Raises:
            PolycovError: on a value that makes no sense.
        """
        if self.seeds < 1:
            raise PolycovError(f"Expected seeds to be at least 1, got {self.seeds}.")
        self.protocol()
        if self.unseen_classes and self.head in TRAINED:
            raise PolycovError(f"--unseen-classes needs --head probe, knn, fewshot or retrieval, got {self.head}.")
        base = read_recipe(self.recipe) if self.recipe is not None else Config()
        probe = self.head not in TRAINED
        channels = (PROBE_CHANNELS if probe else DEFAULT_CHANNELS) if self.channels is None else self.channels
        if channels < 1:
            raise PolycovError(f"Expected channels to be at least 1, got {channels}.")
        return Config(
            data=self.data,
            images=self.images,
            split=self.split,
            network=self.network,
            pooling=replace(base.pooling, channels=channels, store_channels=self.store_channels),
            training=replace(
                base.training,
                probe=probe,
                freeze=self.head == "train",
                **{name: value for name in OVERRIDES if (value := getattr(self, name)) is not None},
            ),
            runtime=self.runtime,
            engine=self.engine,
        ).check()

    def protocol(self) -> Protocol:
        """Returns how features are judged."""
        return make_protocol(self.head, self.protocol_options())

    def protocol_options(self) -> dict[str, Any]:
        """Returns the options of the protocol, by name."""
        return dataclasses.asdict(self.episode) if self.head == "fewshot" else {}

    def command(self) -> str:
        """Returns the command line that runs this comparison."""
        return shlex.join(["polycov", "compare", self.data, *self._flags(own=True)])

    def train_command(self) -> list[str]:
        """Returns the words of a command line that trains in the same way, but for the pool."""
        words = ["polycov", "train", self.data, *HEAD_FLAGS.get(self.head, ["--probe"])]
        for name in ("store_channels", *(("recipe", *OVERRIDES) if self.head in TRAINED else ())):
            if getattr(self, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return [*words, *self._flags(own=False)]

    def _flags(self, own: bool) -> list[str]:
        """The options that are not the default, as on a command line, with those that only a comparison has or not."""
        words: list[str] = []
        groups: list[Any] = [self.images, self.split, self.network, self.runtime]
        for group in [self, self.episode, *groups, self.engine] if own else groups:
            for option in dataclasses.fields(group):
                value = getattr(group, option.name)
                if option.name in ("data", "out", "cache") or isinstance(value, Structured) or value == option.default:
                    continue
                flag = option.name.replace("_", "-")
                if isinstance(value, bool) and isinstance(option.default, bool):
                    words.append(f"--{flag}" if value else f"--no-{flag}")
                else:
                    words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
        return words
