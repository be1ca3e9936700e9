"""Local features of a frozen backbone, computed once and kept in a `FeatureStore`."""

from pathlib import Path

import torch

from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData
from polycov.data.transforms import Preprocessing
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.models.backbones import LAST, Backbone, stages_to_pool
from polycov.models.backends.frozen import Backend
from polycov.models.head import linear_parts
from polycov.models.model import Model
from polycov.progress import SILENT, Progress
from polycov.training.config import NetworkOptions
from polycov.training.extraction import Extraction, reduced_channels


def build_main(options: NetworkOptions, size: int, *, keep_prefix: bool = False) -> Backbone:
    """Makes the backbone whose stage all features are pooled from that do not name their own; see `build_backbone`.

    Raises:
        PolycovError: if it has several stages that are not joined.
    """
    backbone = build_backbone(options, size, keep_prefix=keep_prefix)
    if len(backbone.groups) > 1:
        joined = "+".join(name for name in backbone.groups if name != LAST)
        raise PolycovError(f"Expected one stage, or several joined by +, such as {joined}, got {options.stage!r}.")
    return backbone


def build_backbone(
    options: NetworkOptions, size: int, *, pool: str | None = None, keep_prefix: bool = False
) -> Backbone:
    """Makes a backbone, see `Backbone`; random weights (``weights="none"``) are the same in every process.

    Args:
        options: of the network.
        size: side of the images.
        pool: a method or spec, whose stages the backbone gives beside the chosen one; see `stages_to_pool`.
        keep_prefix: see `Backbone`.
    """
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(0)
        stage = None if options.stage == "last" else options.stage
        return Backbone(
            options.backbone,
            weights=options.weights,
            stage=stage if pool is None else stages_to_pool(pool, stage),
            last_stride=options.last_stride,
            size=size,
            keep_prefix=keep_prefix,
        )


def stored_channels(model: Model, wanted: int | None = None) -> int:
    """Returns how many principal components to store of the local features that a model was or is fitted to.

    All channels, 0, unless a second-order pool follows a linear reduction: what it starts from is then the same. See
    `reduced_channels`.
    """
    if model.pool.first_order or (wanted is None and not linear_parts(model.reduction)):
        return 0
    stages = model.backbone.shapes(model.preprocessing.size).values()
    return reduced_channels(wanted, stages, model.pool.stage_channels)


def extract_features(
    backbone: Backbone,
    data: ImageData,
    preprocessing: Preprocessing,
    cache: Path,
    *,
    channels: int = 0,
    batch_size: int = 16,
    workers: int = 2,
    backend: Backend = "auto",
    device: torch.device | None = None,
    rank: int = 0,
    world: int = 1,
    engine: Engine | None = None,
    plugin: str | None = None,
    progress: Progress = SILENT,
) -> FeatureStore:
    """Computes the local features of all images, or takes them from the cache.

    The cache is keyed by the backbone, its weights, the images and their preprocessing: a change of any leads to
    another folder. An interrupted extraction resumes. Several processes share the work.

    Args:
        backbone: backbone to compute with; its mode is restored.
        data: dataset whose images to use; its splits play no part, except that no test image is used to fit
            principal components.
        preprocessing: preprocessing of the images, as in evaluation.
        cache: folder of the cache.
        channels: store this many principal components, see `ChannelBasis`; 0 for all channels as they are.
        batch_size: images per batch.
        workers: processes that read images.
        backend: what runs the backbone; see `FrozenBackbone`.
        device: device to compute on; default CPU.
        rank: rank of this process among those that share the work.
        world: the number of these processes.
        engine: who computes; by default this process.
        plugin: what registered the backbone, for other processes.
        progress: receives messages and the number of images done.

    Raises:
        NonFiniteError: if a feature is not finite, or too large for float16.
    """
    return (
        Extraction(
            backbone,
            data,
            preprocessing,
            cache,
            batch_size=batch_size,
            workers=workers,
            backend=backend,
            device=device or torch.device("cpu"),
            rank=rank,
            world=world,
            engine=engine or Engine(),
            plugin=plugin,
            progress=progress,
        )
        .run(channels)
        .local
    )
