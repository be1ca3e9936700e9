"""Compact features of any number of images, in shards on disk."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from polycov.data.addresses import is_url
from polycov.data.anywhere import Anywhere, Item, item_name, iterate_items
from polycov.data.broken import SKIP, Broken
from polycov.data.images import Samples
from polycov.data.loading import load_batches
from polycov.data.quantize import FeatureDtype, quantize
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.inference.embedding_folder import EmbeddingFolder, Maker
from polycov.inference.embedding_shards import Array, Shard, ShardFormat, shard_format
from polycov.inference.embeddings import Embeddings
from polycov.models.backbones import Backbone, input_size, load_plugin
from polycov.models.backends.frozen import Backend, FrozenBackbone
from polycov.models.head import PoolingHead
from polycov.models.model import Model
from polycov.models.model_folder import ModelFolder
from polycov.models.tensors import digest
from polycov.pooling.methods import create_pool, list_methods, reads_class_token
from polycov.pooling.pool import Pool
from polycov.progress import SILENT, Progress, Task
from polycov.system.devices import choose_device
from polycov.system.structure import Structured
from polycov.training.config import ImageOptions, NetworkOptions, RuntimeOptions, replace_options
from polycov.training.features import build_backbone

DEFAULT_SIZE = 320


@dataclass(frozen=True)
class EmbedOptions(Structured):
    """Turn images into compact features on disk: a folder of shards with names and features.

    Run the same command again to resume after an interruption, and in several terminals to share the work.
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
    """Of the features on disk; int8 has a column or array of scales, by which features are multiplied."""
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
        self.local_features = FrozenBackbone(backbone, images=0, preprocessing=preprocessing)
        self.backbone, self.pool, self.preprocessing, self.head = backbone, pool, preprocessing, head
        parts = [backbone, pool, *([head.reduction] if head is not None else [])]
        self.digest = digest(nn.ModuleList(parts).state_dict())

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the features of prepared images, or of pixels in uint8, (B, H, W, 3), as (B, D)."""
        (features,) = self.local_features(images)
        return self.pool(features if self.head is None else self.head.reduce(features))

    def freeze(self, backend: Backend, *, images: int, batch_size: int, progress: Progress = SILENT) -> None:
        """Lets a backend run the backbone from now on; see `FrozenBackbone`."""
        self.local_features = FrozenBackbone(
            self.backbone,
            backend,
            images=images,
            batch_size=batch_size,
            preprocessing=self.preprocessing,
            progress=progress,
        )


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
    backbone = build_backbone(options.network, size, keep_prefix=reads_class_token(options.source))
    width, prefix = backbone.num_features, backbone.prefix_tokens
    pool = create_pool(options.source, width, dim=options.dim, seed=options.seed, prefix_tokens=prefix)
    changes: dict[str, Any] = {"resize": images.resize, "squash": images.squash}
    given = {name: value for name, value in changes.items() if value is not None}
    preprocessing = replace(backbone.preprocessing(), **given)
    return Embedder(backbone.to(device).eval(), pool.to(device).eval(), preprocessing)


def embed(
    source: str | Path | EmbedOptions,
    paths: str | Path | Iterable[str | Path] = (),
    out: str | Path = "features",
    *,
    progress: Progress = SILENT,
    **options: Any,
) -> Embeddings:
    """Writes the compact features of images to disk; an interrupted call resumes.

    Args:
        source: a finished run, a saved model, a method or a spec; or all options.
        paths: images, tar and Parquet files of images, and folders of any of them; or their URLs, for fsspec.
        out: folder for the shards.
        progress: receives the number of images done.
        options: any option of `EmbedOptions` by its name, such as ``dim=512`` or ``dtype="int8"``.

    Raises:
        PolycovError: if there is no such run or method, an image cannot be read, or the folder holds something else.
    """
    if not isinstance(source, EmbedOptions):
        given = [paths] if isinstance(paths, str | Path) else paths
        source = EmbedOptions(str(source), tuple(map(str, given)), Path(out))
    chosen: EmbedOptions = replace_options(source, options)
    kind = _check(chosen)
    if chosen.runtime.plugin is not None:
        load_plugin(chosen.runtime.plugin)
    device = choose_device(chosen.runtime.device)
    embedder = make_embedder(chosen, device)
    folder = EmbeddingFolder(chosen.out)
    folder.prepare(_identity(chosen, kind, embedder), _maker(chosen), iterate_items(chosen.paths))
    folder.check_shards(progress)
    total = folder.manifest.images
    shards = -(-total // chosen.shard_size)
    if all(folder.has_shard(i, kind) for i in range(shards)):
        progress.message(f"already complete: {folder.path}")
    embedder.freeze(chosen.runtime.backend, images=total, batch_size=chosen.batch_size, progress=progress)
    job = _Job(folder, chosen, kind, embedder, device)
    with _resumable(folder.path), progress.task("embedding", total) as task:
        while True:
            done = sum(folder.has_shard(i, kind) for i in range(shards))
            task.update(min(done * chosen.shard_size, total))
            if done == shards:
                break
            if not job.write_missing_shards(task):
                time.sleep(0.5)  # other processes work on what is missing
    skipped = folder.skipped()
    return Embeddings(folder.path, total - len(skipped), embedder.pool.out_features, shards, skipped)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Says how to resume after an interruption."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"Run the same command again to resume the embedding in {folder}.") from error


def _check(options: EmbedOptions) -> ShardFormat:
    """Returns the format of the shards, if the options make sense."""
    if not options.paths:
        raise PolycovError("Expected images, tar or Parquet files of images, or folders of them.")
    if options.out.suffix in (".parquet", ".npz", ".npy", ".csv"):
        raise PolycovError(f"--out is a folder of shards, got {str(options.out)!r}. Use --format for the file format.")
    for name in ("shard_size", "batch_size"):
        if getattr(options, name) < 1:
            raise PolycovError(f"Expected {name} to be at least 1, got {getattr(options, name)}.")
    options.runtime.check()
    return shard_format(options.format)


def _identity(options: EmbedOptions, kind: ShardFormat, embedder: Embedder) -> dict[str, Any]:
    """What the features depend on."""
    absolute = all(is_url(str(path)) or Path(path).is_absolute() for path in options.paths)
    return {
        "model": embedder.digest,
        "spec": embedder.pool.spec,
        "dimensions": embedder.pool.out_features,
        "preprocessing": embedder.preprocessing.identity(),
        "paths": [str(path) for path in options.paths],
        "working_folder": None if absolute else os.getcwd(),
        "shard_size": options.shard_size,
        "format": kind,
        "dtype": options.dtype,
    }


def _maker(options: EmbedOptions) -> Maker:
    """What makes the features, with full paths."""
    is_model, weights = ModelFolder(options.source).config.is_file(), Path(options.network.weights)
    source = str(Path(options.source).resolve()) if is_model else options.source
    network = replace(options.network, weights=str(weights.resolve())) if weights.is_file() else options.network
    return Maker(source, options.dim, options.seed, options.images, network)


@dataclass
class _Job:
    """The work of one process on an embedding."""

    folder: EmbeddingFolder
    options: EmbedOptions
    kind: ShardFormat
    embedder: Embedder
    device: torch.device

    def write_missing_shards(self, task: Task) -> bool:
        """Makes the shards that nobody has made or is making; returns whether there were any."""
        wrote = False
        for index, items in enumerate(self.folder.image_lists(self.options.shard_size)):
            if self.folder.has_shard(index, self.kind):
                continue
            with self.folder.lock_shard(index) as acquired:
                if acquired and not self.folder.has_shard(index, self.kind):
                    shard, skipped = self._make_shard(items, task)
                    self.folder.write_shard(index, self.kind, shard, skipped)
                    wrote = True
        return wrote

    @torch.inference_mode()
    def _make_shard(self, items: list[Item], task: Task) -> tuple[Shard, dict[str, str]]:
        size, dtype = self.options.batch_size, self.options.dtype
        names = list(map(item_name, items))
        samples = Samples(Anywhere(), items, [0] * len(items))
        batches = [range(i, min(i + size, len(names))) for i in range(0, len(names), size)]
        skipped: dict[str, str] = {}

        def skip(index: int, reason: str) -> None:
            if self.options.broken == "stop":
                raise PolycovError(f"{reason} Skip such images with {SKIP}.")
            skipped[names[index]] = reason

        kept: list[str] = []
        features: list[Array] = [np.zeros((0, self.embedder.pool.out_features), dtype=dtype)]
        scales: list[Array] = [np.zeros(0, np.float32)]
        preprocessing, workers = self.embedder.preprocessing, self.options.runtime.workers
        loading = load_batches(samples, preprocessing, batches, workers, skip, pixels=True)
        for images, _, indices in loading:
            if len(indices):
                vectors = self.embedder(images.to(self.device))
                codes, scale = quantize(vectors.cpu(), dtype)
                features.append(codes.numpy())
                scales += [] if scale is None else [scale.numpy()]
                kept += [names[int(i)] for i in indices]
            task.advance(len(images))
        return Shard(kept, np.concatenate(features), np.concatenate(scales) if dtype == "int8" else None), skipped
