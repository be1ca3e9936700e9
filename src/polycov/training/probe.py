"""A classifier in closed form: principal components, a pool, ridge regression."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.data.images import Split
from polycov.errors import PolycovError
from polycov.models.head import linear_parts
from polycov.models.local_features import split_maps
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.batches import Repeatable
from polycov.pooling.methods import needs_training
from polycov.pooling.pool import Pool
from polycov.pooling.post.base import FittedPost
from polycov.pooling.post.pca import principal_components
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.tokens import maps_to_tokens
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import Rows
from polycov.training.ridge import Ridge, fit_ridge, require_validation_rows


def channel_components(batches: Iterable[Tensor], channels: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns the mean (C,) and the leading principal components (channels, C) of local features, in float64.

    Args:
        batches: maps (B, C, H, W) or tokens (B, N, C).
        channels: the number of components; default: as many as there are.

    Raises:
        PolycovError: if there are fewer local features than components.
    """
    statistics = Statistics()
    width = 0
    for features in batches:
        tokens = maps_to_tokens(features)
        width = tokens.shape[-1]
        statistics.update(tokens.reshape(-1, width))
    return principal_components(statistics, min(width, statistics.samples) if channels is None else channels)


@torch.no_grad()
def fit_reduction(model: Model, batches: Iterable[Tensor]) -> None:
    """Sets a linear reduction to the principal components of local features, those of each stage by themselves.

    Args:
        model: model with a reduction "linear".
        batches: local features of the backbone, maps (B, C, H, W) or tokens (B, N, C).

    Raises:
        PolycovError: if there are fewer features than components.
    """
    parts = linear_parts(model.reduction)
    if not parts:
        raise PolycovError("Principal components need a linear reduction.")
    for part in parts:
        if part.out_channels > part.in_channels:
            raise PolycovError(
                f"Expected at most the {part.in_channels} channels of the backbone, got {part.out_channels}."
            )
    statistics = [Statistics() for _ in parts]
    shapes = list(model.backbone.shapes(model.preprocessing.size).values()) if len(parts) > 1 else []
    for features in batches:
        stages = split_maps(features, shapes) if shapes else [features]
        for known, stage in zip(statistics, stages, strict=True):
            tokens = maps_to_tokens(stage)
            known.update(tokens.reshape(-1, tokens.shape[-1]))
    for part, known in zip(parts, statistics, strict=True):
        try:
            mean, components = principal_components(known, part.out_channels)
        except PolycovError as error:
            raise PolycovError(f"{error} Choose fewer --channels, or add training images.") from error
        part.weight.copy_(components[..., None, None])
        if part.bias is not None:
            part.bias.copy_(-(components @ mean))


@torch.no_grad()
def fit_pool(model: Model, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Fits the stages of the pool that are fitted to data, if there are any.

    Args:
        model: model with the pool.
        batches: local features of the backbone, as in `fit_reduction`, and labels (B,); they may be read several times.
    """
    if not model.pool.is_fitted:
        with evaluation_mode(model):
            model.pool.fit(Repeatable(lambda: ((model.reduce(features), labels) for features, labels in batches)))


@torch.inference_mode()
def pool_batches(
    pool: Pool, batches: Iterable[Tensor], count: int, memory: Memory = UNBOUNDED, of: int | None = None
) -> Rows:
    """Returns the pooled features of batches of local features, (count, D), in float32 or wider.

    Args:
        pool: fitted pool.
        batches: local features.
        count: the number of images in them.
        memory: how much may be used; features that do not fit are in a temporary file.
        of: the number of features kept at the same time, these included.
    """
    result: Rows | None = None
    begin = 0
    with evaluation_mode(pool):
        for local in batches:
            features = pool(local).cpu()
            if result is None:
                result = memory.rows(count, features.shape[1], of)
                result = result.to(features.dtype) if isinstance(result, Tensor) else result
            result[begin : begin + len(features)] = features
            begin += len(features)
    if begin != count:
        raise PolycovError(f"Expected local features of {count} images, got {begin}.")
    return torch.empty(0, pool.out_features) if result is None else result


@dataclass(frozen=True)
class Probe:
    """A pool with a ridge classifier on top.

    Attributes:
        ridge: the classifier.
        features: pooled features of each split, (n, D).
        pool_seconds: the time it took to pool them.
    """

    ridge: Ridge
    features: dict[Split, Rows]
    pool_seconds: float


def require_closed_form(method: str) -> None:
    """Refuses a method that a closed form cannot fit.

    Raises:
        PolycovError: if its parameters need training.
    """
    if needs_training(method):
        raise PolycovError(
            f"{method!r} has parameters that must be trained, and a probe in closed form trains none: use polycov "
            "compare --head train, or polycov train --freeze."
        )


def fit_probe(
    pool: Pool,
    batches: Mapping[Split, Iterable[Tensor]],
    labels: Mapping[Split, Tensor],
    classes: int,
    memory: Memory = UNBOUNDED,
) -> Probe:
    """Fits the pool, if it needs fitting and is not fitted yet, and a ridge classifier on its features.

    Both are fitted to the training images, the strength of the ridge is chosen on validation, and both are fitted again
    to training and validation together.

    Args:
        pool: pool of local features.
        batches: local features as the pool takes them, of "train", "val" and any further splits to pool; they may be
            read several times.
        labels: of each split, (n,).
        classes: their number.
        memory: how much may be used.

    Raises:
        PolycovError: if there are no validation images, the pool needs training, or memory is too small.
    """
    fitted, features, seconds = pool_splits(pool, batches, labels, memory=memory)
    before, both = fitted or features, (features["train"], features["val"]) if fitted else None
    ridge = fit_ridge(before["train"], labels["train"], before["val"], labels["val"], classes, both, memory=memory)
    return Probe(ridge, features, seconds)


def pool_splits(
    pool: Pool,
    batches: Mapping[Split, Iterable[Tensor]],
    labels: Mapping[Split, Tensor],
    *,
    again: bool = True,
    memory: Memory = UNBOUNDED,
) -> tuple[dict[Split, Rows] | None, dict[Split, Rows], float]:
    """Fits the pool, if it needs fitting and is not fitted yet, and pools all splits.

    Args:
        pool, batches, labels, memory: as in `fit_probe`.
        again: whether the pool is fitted to training and validation together in the end.

    Returns:
        features of the pool fitted to the training images, if it was fitted again; features of the pool as it is then;
        and the time to pool all splits once.

    Raises:
        PolycovError: if the pool needs training, there are no validation images, or memory is too small.
    """
    require_closed_form(pool.spec)
    require_validation_rows(labels["val"])
    fit_the_pool = not pool.is_fitted
    again = again and fit_the_pool
    if fit_the_pool:
        _require_memory(pool, len(labels["train"]) + len(labels["val"]), memory)
        pool.fit(Repeatable(lambda: _labelled(batches, labels, ["train"])))

    def pooled() -> dict[Split, Rows]:
        images = sum(len(labels[split]) for split in batches) * (2 if again else 1)
        return {split: pool_batches(pool, batches[split], len(labels[split]), memory, images) for split in batches}

    start = time.perf_counter()
    features = pooled()
    seconds = time.perf_counter() - start
    if not again:
        return None, features, seconds
    pool.fit(Repeatable(lambda: _labelled(batches, labels, ["train", "val"])))
    return features, pooled(), seconds


def _require_memory(pool: Pool, images: int, memory: Memory) -> None:
    """Refuses to fit stages that do not fit into memory."""
    width = max((stage.in_features for stage in pool.modules() if isinstance(stage, FittedPost)), default=0)
    memory.require_matrix(min(width, images), f"Fitting {pool.spec!r}")


def _labelled(
    batches: Mapping[Split, Iterable[Tensor]], labels: Mapping[Split, Tensor], splits: Iterable[Split]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of some splits, with their labels."""
    for split in splits:
        begin = 0
        for features in batches[split]:
            yield features, labels[split][begin : begin + len(features)]
            begin += len(features)


@torch.no_grad()
def set_classifier(model: Model, ridge: Ridge) -> None:
    """Sets the classifier of a model to a ridge."""
    model.classifier.weight.copy_(ridge.weight.mT)
    model.classifier.bias.copy_(ridge.bias)
