"""The tensor sketch of a matrix."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polycov.errors import positive_int, true_or_false
from polycov.pooling.registry import register
from polycov.pooling.vectors.base import MOST_DIMENSIONS, Channels
from polycov.pooling.vectors.buckets import BucketMap, bucket_sum, random_signs


def tensor_sketch(matrix: Tensor, hashes: Tensor, signs: Tensor, dim: int) -> Tensor:
    """Returns φ with φ_j = Σ s₁(a) s₂(b) Q_ab over the a, b with h₁(a) + h₂(b) ≡ j (mod D).

    ⟨φ(P), φ(Q)⟩ is an unbiased estimate of ⟨P, Q⟩. There is no Fourier transform: the entries of the matrix are summed.

    Args:
        matrix: Q, (B, C₁, C₂).
        hashes: h₁ and h₂, (2, C), integers in [0, D); C is the larger of C₁ and C₂.
        signs: s₁ and s₂, (2, C), each ±1.
        dim: D.

    Returns:
        (B, D).

    Reference: Pham, Pagh, "Fast and Scalable Polynomial Kernels via Explicit Feature Maps", KDD 2013.

    Example:
        >>> hashes, signs = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1.0, -1.0], [1.0, 1.0]])
        >>> tensor_sketch(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), hashes, signs, 4)
        tensor([[ 0.,  3., -7.,  0.]])
    """
    sides = matrix.shape[1], matrix.shape[2]
    weight = _outer(signs, torch.mul, sides).to(matrix.dtype)
    return bucket_sum(matrix.flatten(1) * weight, _outer(hashes, torch.add, sides) % dim, dim)


def _outer(pair: Tensor, operation: Callable[[Tensor, Tensor], Tensor], sides: tuple[int, int]) -> Tensor:
    """Applies the operation to all pairs of the first C₁ entries of one row of (2, C) and C₂ of the other: (C₁C₂,)."""
    return operation(pair[0, : sides[0]].unsqueeze(1), pair[1, : sides[1]]).flatten()


def tensor_sketch_factored(left: Tensor, right: Tensor, hashes: Tensor, signs: Tensor, dim: int) -> Tensor:
    """Returns the tensor sketch of Σ_n left_n right_nᵀ as the literature computes it, by FFT at every location.

    Σ_n ifft(fft(ψ₁ left_n) ∘ fft(ψ₂ right_n)), where ψ is the count sketch of a vector. It takes O(N D log D) time and
    stores (B, N, D) complex numbers; meant as a reference.

    Args:
        left: (B, N, C₁).
        right: (B, N, C₂).
        hashes: (2, C).
        signs: (2, C).
        dim: D.

    Returns:
        (B, D).
    """
    if left.shape[0] == 0:  # there is no Fourier transform of an empty batch
        return left.new_zeros(0, dim) + left.sum() + right.sum()
    spectra = []
    for x, h, s in zip((left, right), hashes, signs, strict=True):
        sketch = x.new_zeros(*x.shape[:2], dim)
        width = x.shape[-1]
        sketch = sketch.index_add(2, h[:width], x * s[:width].to(x.dtype))  # (B, N, D)
        spectra.append(torch.fft.rfft(sketch))
    return torch.fft.irfft((spectra[0] * spectra[1]).sum(1), n=dim)


@register("vector", "tensor_sketch", "tensor_sketch(24)", "tensor_sketch(24, learnable=True)")
class TensorSketch(BucketMap):
    """A tensor sketch with ``dim`` dimensions: see `polycov.functional.tensor_sketch`.

    Args:
        channels: C, the size of symmetric matrices, or (C₁, C₂) of any.
        dim: D.
        learnable: make the signs parameters, as in Gao et al. (compact bilinear pooling, CVPR 2016).
        seed: determines the hashes and the signs.
    """

    is_sketch = True
    has_factored = True
    hashes: Tensor
    signs: Tensor

    def __init__(self, channels: Channels, dim: int, *, learnable: bool = False, seed: int = 0) -> None:
        super().__init__(channels, positive_int("tensor_sketch", "dim", dim, MOST_DIMENSIONS))
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("hashes", torch.randint(dim, (2, max(self.sides)), generator=generator, device="cpu"))
        signs = random_signs(2, max(self.sides), generator=generator)
        if true_or_false("tensor_sketch", "learnable", learnable):
            self.signs = nn.Parameter(signs)
        else:
            self.register_buffer("signs", signs)
        self.build()
        self.to(torch.get_default_device())

    def assign_buckets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return _outer(self.hashes, torch.add, self.sides) % self.out_features, torch.empty(0, device=device)

    def weight(self, dtype: torch.dtype) -> Tensor:
        return _outer(self.signs, torch.mul, self.sides).to(dtype)

    def factored(self, left: Tensor, right: Tensor) -> Tensor:
        return tensor_sketch_factored(left, right, self.hashes, self.signs, self.out_features)
