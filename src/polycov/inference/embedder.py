"""What turns images into compact features: the layers of a trained model, or a pool on a pretrained backbone."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from polycov.data.broken import Broken
from polycov.data.quantize import FeatureDtype
from polycov.data.transforms import Preprocessing
from polycov.engines.engine import EngineOptions
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone, input_size
from polycov.models.backends.frozen import Backend, FrozenBackbone
from polycov.models.head import PoolingHead, reduce_features
from polycov.models.model import Model
from polycov.models.model_folder import ModelFolder
from polycov.models.tensors import digest
from polycov.pooling.methods import create_pool, list_methods, reads_class_token
from polycov.pooling.pool import Pool
from polycov.progress import SILENT, Progress
from polycov.system.structure import Structured
from polycov.training.config import ImageOptions, NetworkOptions, RuntimeOptions
from polycov.training.features import build_backbone

DEFAULT_SIZE = 320
T = TypeVar("T")


@dataclass(frozen=True)
class EmbedOptions(Structured):
    """Turn images into compact features on disk: a folder of shards with names and features.

    Run the same command again to resume after an interruption. Several processes share the work (--jobs), or several
    machines (--engine ray).
    """

    source: str
    """A finished run or a saved model; or a method or spec, for a pool on a pretrained backbone."""
    paths: tuple[str, ...] = ()
    """Images, tar (webdataset) or Parquet files of images, or folders of any of them; or their URLs, such as
    s3://bucket/birds, which fsspec reads."""
    out: Path = Path("features")
    """Folder for the shards."""
    format: Literal["auto", "parquet", "npz"] = "auto"
    """parquet (columns name and feature) or npz (arrays names and features); auto: parquet if pyarrow is installed."""
    dtype: FeatureDtype = "float32"
    """Type of the features on disk; int8 has a column or array of scales to multiply the features by."""
    shard_size: int = 1024
    """Images per shard."""
    batch_size: int = 16
    """Images per batch."""
    broken: Broken = "stop"
    """What to do about unreadable images: stop, or skip and record them."""
    dim: int | None = None
    """With a method: dimension of the feature, for methods that let you choose it."""
    seed: int = 0
    """With a method: seed of the sketch."""
    images: ImageOptions = field(default_factory=ImageOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


def resolved_source(source: str) -> str:
    """Returns the source of features with the full path of a run or model, for other folders and machines."""
    return str(Path(source).resolve()) if ModelFolder(source).config.is_file() else source


class ReducedPool(nn.Module):
    """Local features → the reduction of a head → its pool.

    Args:
        head: the head.
    """

    def __init__(self, head: PoolingHead) -> None:
        super().__init__()
        self.reduction, self.pool = head.reduction, head.pool

    def forward(self, features: Tensor) -> Tensor:
        """Returns the pooled features, (B, D), of maps (B, C, H, W) or tokens (B, N, C)."""
        pooled: Tensor = self.pool(reduce_features(self.reduction, features))
        return pooled


class Embedder:
    """From prepared images to features: the layers of a trained model, or a pool on a pretrained backbone.

    Args:
        backbone: from images to local features.
        pool: from local features to a feature.
        preprocessing: preprocessing of images.
        head: head whose reduction comes between the two, if any.

    Attributes:
        digest: digest of all weights that the features depend on.
    """

    def __init__(
        self, backbone: Backbone, pool: Pool, preprocessing: Preprocessing, head: PoolingHead | None = None
    ) -> None:
        self.backbone, self.pool, self.preprocessing = backbone, pool, preprocessing
        self.then = pool if head is None else ReducedPool(head)
        self._frozen = self._freeze("auto", images=0)
        parts = [backbone, pool, *([head.reduction] if head is not None else [])]
        self.digest = digest(nn.ModuleList(parts).state_dict())

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the features of prepared images, or of pixels in uint8, (B, H, W, 3), as (B, D)."""
        (features,) = self._frozen(images)
        return features

    def stream(self, batches: Iterable[tuple[Tensor, T]]) -> Iterator[tuple[Tensor, T]]:
        """Yields the features of batches, in order, with what came beside each; see `FrozenBackbone.stream`."""
        return ((features, beside) for (features,), beside in self._frozen.stream(batches))

    def freeze(self, backend: Backend, *, images: int, batch_size: int, progress: Progress = SILENT) -> None:
        """Lets a backend compute from now on; see `FrozenBackbone`."""
        self._frozen = self._freeze(backend, images=images, batch_size=batch_size, progress=progress)

    def _freeze(self, backend: Backend, **options: Any) -> FrozenBackbone:
        return FrozenBackbone(self.backbone, backend, then=self.then, preprocessing=self.preprocessing, **options)


def make_embedder(options: EmbedOptions, device: torch.device) -> Embedder:
    """Returns what turns images into features.

    Raises:
        PolycovError: if there is no such run, method or backbone.
    """
    if ModelFolder(options.source).config.is_file():
        if (options.dim, options.seed, options.images, options.network) != (
            None,
            0,
            ImageOptions(),
            NetworkOptions(),
        ):
            raise PolycovError("A run has its own backbone, size, dimension and seed: omit --dim, --size and the like.")
        model = Model.from_pretrained(options.source).to(device).eval()
        return Embedder(model.backbone, model.pool, model.preprocessing, model)
    if options.source not in list_methods() and "|" not in options.source and Path(options.source).exists():
        raise PolycovError(f"{options.source!r} is not a run: it has no config.json.")
    images = options.images
    size = input_size(options.network.backbone, images.size, DEFAULT_SIZE)
    source = options.source
    backbone = build_backbone(options.network, size, pool=source, keep_prefix=reads_class_token(source))
    width, prefix = backbone.channels_for(source), backbone.prefix_tokens
    pool = create_pool(source, width, dim=options.dim, seed=options.seed, prefix_tokens=prefix)
    if not pool.is_fitted:
        raise PolycovError(
            f"{options.source!r} is fitted to training images, and here there are none. Fit it first, by polycov train "
            f"FOLDER --probe --pool {shlex.quote(options.source)}, and embed with the run: polycov embed RUN …"
        )
    changes: dict[str, Any] = {"resize": images.resize, "squash": images.squash, "draft": images.draft}
    given = {name: value for name, value in changes.items() if value is not None}
    preprocessing = replace(backbone.preprocessing(), **given)
    return Embedder(backbone.to(device).eval(), pool.to(device).eval(), preprocessing)
