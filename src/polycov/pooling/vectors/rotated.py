"""Some entries of a matrix after a random rotation."""

import torch
from torch import Tensor, nn

from polycov.errors import positive_int
from polycov.pooling.registry import register
from polycov.pooling.vectors.base import Channels, Vector
from polycov.pooling.vectors.buckets import root_two
from polycov.pooling.vectors.triangle import upper_triangle


def rotated(matrix: Tensor, rotation: Tensor, entries: Tensor, dim: int) -> Tensor:
    """Returns D entries of the triangle of U Q Uᵀ, drawn without replacement.

    A rotation U preserves inner products, so with all m = C(C+1)/2 entries the feature is exact. Some of them, times
    √(m/D), estimate ⟨P, Q⟩ without bias and with the variance m²(1 − D/m)S²/D, S² the variance of the m products of
    entries: small, because a random rotation leaves no entry much larger than the others.

    Entry (i, j) is uᵢᵀ Q uⱼ, as in random Maclaurin features, but of rows that are shared and orthogonal: two products
    of C×C matrices give all of them, where independent rows cost 2DC² operations.

    Args:
        matrix: Q, symmetric, (B, C, C).
        rotation: U, orthogonal, (C, C).
        entries: which entries of the triangle, min(D, m) of them.
        dim: D; beyond m the rest is 0.

    Returns:
        (B, D).

    Example:
        >>> rotated(torch.tensor([[[1.0, 0.0], [0.0, 3.0]]]), torch.eye(2), torch.tensor([2, 0, 1]), 4)
        tensor([[3., 1., 0., 0.]])
    """
    rows, off = upper_triangle(matrix.shape[-1], matrix.device)
    turned = rotation.to(matrix.dtype) @ matrix @ rotation.to(matrix.dtype).mT
    return _drawn(turned, rows[entries], root_two(off[entries], matrix.dtype), len(rows), dim)


def _drawn(matrix: Tensor, entries: Tensor, weights: Tensor, size: int, dim: int) -> Tensor:
    """Some entries of a flattened matrix, weighted to stand for all ``size`` of them."""
    scale = (size / len(entries)) ** 0.5
    return nn.functional.pad(matrix.flatten(1)[:, entries] * (weights * scale), (0, dim - len(entries)))


@register("vector", "rotated", "rotated(12)", "rotated(64)")
class Rotated(Vector):
    """Entries of the matrix after a random rotation, ``dim`` of them: see `polycov.functional.rotated`.

    Of a matrix that is not symmetric, rows and columns are rotated apart, and all entries are drawn from.

    Args:
        channels: C, the size of symmetric matrices, or (C₁, C₂) of any.
        dim: D.
        seed: determines the rotation and the entries.
    """

    is_sketch = True
    rotation: Tensor
    entries: Tensor

    def __init__(self, channels: Channels, dim: int, *, seed: int = 0) -> None:
        super().__init__(channels, positive_int("rotated", "dim", dim))
        generator = torch.Generator().manual_seed(seed)
        rows, columns = self.sides
        self.register_buffer("rotation", random_rotation(rows, generator))
        if not self.symmetric:
            self.register_buffer("right", random_rotation(columns, generator))
        order = torch.randperm(self.size, generator=generator, device="cpu")
        self.register_buffer("entries", order[: min(dim, self.size)].clone())
        self.to(torch.get_default_device())

    def forward(self, matrix: Tensor) -> Tensor:
        if self.symmetric:
            return rotated(matrix, self.rotation, self.entries, self.out_features)
        turned = self.rotation.to(matrix.dtype) @ matrix @ self.get_buffer("right").to(matrix.dtype).mT
        return _drawn(turned, self.entries, matrix.new_ones(()), self.size, self.out_features)


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """Returns an orthogonal matrix, uniformly distributed, drawn on the CPU.

    Example:
        >>> u = random_rotation(3, torch.Generator().manual_seed(0))
        >>> torch.allclose(u @ u.mT, torch.eye(3), atol=1e-6)
        True
    """
    normal = torch.randn(size, size, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(normal)
    return (q * r.diagonal().sign()).float()  # the signs make it unique, and so uniform
