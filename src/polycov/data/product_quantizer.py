"""Product quantisation: features in a few bytes."""

from typing import Any

import torch
from torch import Tensor

from polycov.errors import NotFittedError, PolycovError, positive_int, require_module

BITS = 4  # of a code: sixteen centroids can be fitted to few features
DIMENSIONS = 4  # kept for each byte


class ProductQuantizer:
    """Stores features in ``bytes`` bytes each (Jégou et al. 2011, "Product quantization for nearest neighbor search").

    A feature is reduced to at most four principal components of the training features for each byte, rotated at random,
    so that all parts matter alike, and cut into two parts for each byte. Each part is stored as the number, four bits,
    of the nearest of sixteen centroids, which k-means finds on training features.

    Args:
        bytes: of a stored feature.
        seed: seed of the rotation and of k-means.

    Example:
        >>> features = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
        >>> quantizer = ProductQuantizer(16).fit(features)
        >>> codes = quantizer.encode(features)
        >>> codes.shape, codes.dtype, quantizer.decode(codes).shape
        (torch.Size([200, 16]), torch.uint8, torch.Size([200, 32]))
    """

    def __init__(self, bytes: int, seed: int = 0) -> None:
        self.bytes = positive_int("the quantiser", "bytes", bytes)
        self.seed = seed
        self._fitted: tuple[Any, Tensor, Tensor] | None = None  # faiss's quantiser, mean, rotation

    def fit(self, features: Tensor) -> "ProductQuantizer":
        """Fits the centroids to training features (n, D); returns the quantiser.

        Raises:
            PolycovError: if there are fewer than sixteen features, or fewer components than parts.
            MissingDependencyError: if faiss is not installed.
        """
        sentence = "Product quantisation needs faiss. Install it with: pip install 'polycov[search]'"
        faiss = require_module("faiss", sentence)
        parts, (count, width) = self.bytes * 8 // BITS, features.shape
        if count < 2**BITS or min(count, width) < parts:
            raise PolycovError(
                f"Expected {max(parts, 2**BITS)} features of at least {parts} dimensions for {self.bytes} bytes, "
                f"got {count} of {width}."
            )
        mean, components = _components(features, min(DIMENSIONS * self.bytes, count, width))
        padded = -(-len(components) // parts) * parts
        turn = torch.linalg.qr(torch.randn(padded, padded, generator=torch.Generator().manual_seed(self.seed)))[0]
        rotation = components.mT @ turn[: len(components)]
        quantizer = faiss.ProductQuantizer(padded, parts, BITS)
        quantizer.cp.min_points_per_centroid, quantizer.cp.seed = 1, self.seed + 1  # no warning on standard error
        quantizer.train(((features.float() - mean) @ rotation).contiguous().numpy())
        self._fitted = (quantizer, mean, rotation)
        return self

    def encode(self, features: Tensor) -> Tensor:
        """Returns the codes of features (n, D), (n, bytes) in uint8."""
        quantizer, mean, rotation = self._parts()
        return torch.from_numpy(quantizer.compute_codes(((features.float() - mean) @ rotation).contiguous().numpy()))

    def decode(self, codes: Tensor) -> Tensor:
        """Returns the features that codes stand for, (n, D) in float32."""
        quantizer, mean, rotation = self._parts()
        return torch.from_numpy(quantizer.decode(codes.contiguous().numpy())) @ rotation.mT + mean

    def _parts(self) -> tuple[Any, Tensor, Tensor]:
        if self._fitted is None:
            raise NotFittedError("The quantiser is not fitted. Call fit(features) with training features.")
        return self._fitted


def _components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean (D,) and the leading principal components (count, D), on the smaller side of the features."""
    rows = features.double()
    mean = rows.mean(0)
    rows = rows - mean
    if len(rows) < rows.shape[1]:
        vectors = torch.linalg.eigh(rows @ rows.mT)[1][:, -count:].flip(1)
        components = torch.linalg.qr(rows.mT @ vectors)[0].mT
    else:
        components = torch.linalg.eigh(rows.mT @ rows)[1][:, -count:].flip(1).mT
    return mean.float(), components.float()
