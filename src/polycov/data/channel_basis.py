"""Principal components of the channels of local features, in which a large network's features are kept on disk."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.pooling.post.pca import principal_variances
from polycov.pooling.post.statistics import Statistics
from polycov.pooling.tokens import maps_to_tokens


@dataclass(frozen=True)
class ChannelBasis:
    """K orthonormal directions in the space of C channels: z = P (x − m), and back, x ≈ m + Pᵀ z.

    Covariances of z are those of x within the K directions, P Σ Pᵀ. So principal components of z, of which there are at
    most K, are those of x, and a covariance pool on them is the same as long as they lie within the K directions.

    Attributes:
        mean: m, (C,), float32.
        components: P, (K, C), float32, with orthonormal rows.
        share: of the variance that it was fitted to, how much lies within the K directions.

    Example:
        >>> basis = fit_basis([torch.randn(2, 50, 8)], 3)
        >>> z = basis.encode(torch.randn(4, 8, 5, 5))
        >>> z.shape, basis.decode(z).shape
        (torch.Size([4, 3, 5, 5]), torch.Size([4, 8, 5, 5]))
    """

    mean: Tensor
    components: Tensor
    share: float

    def encode(self, features: Tensor) -> Tensor:
        """Returns the K coordinates of maps (B, C, H, W) or tokens (B, N, C), in the same layout."""
        mean, components = self.mean.to(features), self.components.to(features)
        if features.ndim == 3:
            return (features - mean) @ components.mT
        flat = components @ features.flatten(2) - (components @ mean)[:, None]
        return flat.unflatten(2, features.shape[2:])

    def decode(self, coordinates: Tensor) -> Tensor:
        """Returns the features with these coordinates in all C channels: the nearest that the basis can express."""
        mean, components = self.mean.to(coordinates), self.components.to(coordinates)
        if coordinates.ndim == 3:
            return coordinates @ components + mean
        return (components.mT @ coordinates.flatten(2) + mean[:, None]).unflatten(2, coordinates.shape[2:])

    def digest(self) -> str:
        """Returns a SHA-256 of mean and components."""
        values = torch.cat([self.mean[None], self.components]).contiguous()
        return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def fit_basis(batches: Iterable[Tensor], channels: int, widths: Sequence[int] = ()) -> ChannelBasis:
    """Returns the leading principal components of local features.

    Args:
        batches: maps (B, C, H, W) or tokens (B, N, C).
        channels: K, the number of components.
        widths: the channels of each stage, where several stand side by side: each has K components of its own, or as
            many as it has channels.

    Raises:
        PolycovError: if there are fewer channels or local features than components.
    """
    stages: list[Statistics] = []
    squares = torch.zeros((), dtype=torch.float64)
    for features in batches:
        rows = maps_to_tokens(features).flatten(0, 1)
        parts = rows.split(list(widths) or rows.shape[1], 1)
        stages = stages or [Statistics() for _ in parts]
        for pca, part in zip(stages, parts, strict=True):
            pca.update(part)
        squares += rows.double().square().sum()
    sizes = [min(channels, width) for width in widths] or [channels]
    stages = stages or [Statistics() for _ in sizes]
    fitted = [principal_variances(pca, size) for pca, size in zip(stages, sizes, strict=True)]
    mean, components = torch.cat([one[0] for one in fitted]), torch.block_diag(*(one[1] for one in fitted))
    total = float(squares / stages[0].samples - mean.square().sum())
    share = min(float(sum(one[2].sum() for one in fitted)) / total, 1.0) if total > 0 else 1.0
    return ChannelBasis(mean.float(), components.float(), share)
