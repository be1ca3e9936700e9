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


def fit_basis(batches: Iterable[Tensor | Sequence[Tensor]], channels: int) -> ChannelBasis:
    """Returns the leading principal components of local features.

    Args:
        batches: maps (B, C, H, W) or tokens (B, N, C); or those of several stages, each at its own locations: each
            has K components of its own, or as many as it has channels.
        channels: K, the number of components.

    Raises:
        PolycovError: if there are fewer channels or local features than components.
    """
    stages: list[_Stage] = []
    for batch in batches:
        parts = [batch] if isinstance(batch, Tensor) else batch
        stages = stages or [_Stage() for _ in parts]
        for stage, features in zip(stages, parts, strict=True):
            stage.update(features)
    fitted = [stage.fit(min(channels, stage.width) if len(stages) > 1 else channels) for stage in stages or [_Stage()]]
    means, components, kept, totals = zip(*fitted, strict=True)
    share = min(sum(kept) / sum(totals), 1.0) if sum(totals) > 0 else 1.0
    return ChannelBasis(torch.cat(means).float(), torch.block_diag(*components).float(), share)


class _Stage:
    """What a basis needs to know of the local features of a stage."""

    def __init__(self) -> None:
        self.pca, self.squares, self.width = Statistics(), 0.0, 0

    def update(self, features: Tensor) -> None:
        rows = maps_to_tokens(features).flatten(0, 1)
        self.width = rows.shape[1]
        self.pca.update(rows)
        self.squares += float(rows.double().square().sum())

    def fit(self, channels: int) -> tuple[Tensor, Tensor, float, float]:
        """Mean, components, their variance, and all variance."""
        mean, components, variances = principal_variances(self.pca, channels)
        total = self.squares / self.pca.samples - float(mean.square().sum())
        return mean, components, float(variances.sum()), total
