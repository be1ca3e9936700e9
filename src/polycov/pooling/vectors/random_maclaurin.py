"""Random Maclaurin features of a matrix."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import positive_int, true_or_false
from polycov.pooling.registry import register
from polycov.pooling.transforms import SampleFunction, call, has_derivative, is_batched, is_readable
from polycov.pooling.vectors.base import MOST_DIMENSIONS, Channels, Vector
from polycov.pooling.vectors.buckets import random_signs

BLOCK = 256  # dimensions computed at a time, so that no (B, D, C) tensor is made


def random_maclaurin(matrix: Tensor, weights: Tensor) -> Tensor:
    """Returns φ with φ_j = w₁ⱼᵀ Q w₂ⱼ / √D.

    ⟨φ(P), φ(Q)⟩ is an unbiased estimate of ⟨P, Q⟩.

    Args:
        matrix: Q, (B, C₁, C₂).
        weights: W₁ and W₂, (2, D, C), each entry ±1; C is the larger of C₁ and C₂.

    Returns:
        (B, D).

    Reference: Kar, Karnick, "Random Feature Maps for Dot Product Kernels", AISTATS 2012.

    Example:
        >>> random_maclaurin(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.ones(2, 1, 2))
        tensor([[10.]])
    """
    if is_batched(weights) or has_derivative(weights):
        return _features(matrix, weights, in_place=False)
    result: Tensor = call(_FixedMaps, matrix, weights)
    return result


def _features(matrix: Tensor, weights: Tensor, *, in_place: bool) -> Tensor:
    features = []
    for left, right in _blocks(weights, matrix.dtype, matrix.shape[1:]):
        product, signs = _times_shared(matrix, right), left.mT.contiguous()
        features.append((product.mul_(signs) if in_place else product * signs).sum(1))
    return torch.cat(features, 1) / weights.shape[1] ** 0.5


class _FixedMaps(SampleFunction):
    """The features for weights without a derivative: linear, so that nothing needs to be stored but the weights."""

    shared = (1,)

    @staticmethod
    def forward(matrix: Tensor, weights: Tensor) -> Tensor:
        return _features(matrix, weights, in_place=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        matrix, weights = inputs
        ctx.sides = matrix.shape[1:]
        ctx.save_for_backward(weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return call(_Adjoint, grad, *ctx.saved_tensors, ctx.sides), None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        result: Tensor = call(_FixedMaps, direction, *ctx.saved_tensors)
        return result


class _Adjoint(SampleFunction):
    """Σ_j g_j w₁ⱼ w₂ⱼᵀ / √D, (B, D) → (B, C₁, C₂)."""

    shared = (1,)

    @staticmethod
    def forward(grad: Tensor, weights: Tensor, sides: Sequence[int]) -> Tensor:
        total, factor = grad.new_zeros(len(grad), *sides), weights.shape[1] ** -0.5
        blocks = _blocks(weights, grad.dtype, sides)
        for (left, right), part in zip(blocks, (grad * factor).split(BLOCK, 1), strict=True):
            total += _times_shared(left.mT * part.unsqueeze(1), right.mT)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.sides = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return call(_FixedMaps, grad, *ctx.saved_tensors), None, None

    @staticmethod
    def tangent(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        result: Tensor = call(_Adjoint, direction, *ctx.saved_tensors, ctx.sides)
        return result


def _blocks(weights: Tensor, dtype: torch.dtype, sides: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields W₁ and W₂ for some dimensions at a time, for matrices with these many rows and columns."""
    left, right = _halves(weights.to(dtype), *sides)
    return zip(left.split(BLOCK), right.split(BLOCK), strict=True)


def _times_shared(matrix: Tensor, weights: Tensor) -> Tensor:
    """Returns Q Wᵀ, (B, C₁, D), with the same W for all samples, (D, C₂).

    That is a 1 × 1 convolution of the rows of Q. On a CPU torch has oneDNN compute convolutions, at twice the speed of
    MKL's products on processors that are not Intel's: oneDNN uses their AVX-512. With fewer than 16 images torch does
    so only on several threads, so the rows are dealt to 16 images.
    """
    if not _has_fast_convolution(matrix):
        return matrix @ weights.mT
    images = math.gcd(16, matrix.shape[0] * matrix.shape[1])
    maps = matrix.reshape(images, -1, 1, matrix.shape[2]).movedim(3, 1)
    return nn.functional.conv2d(maps, weights[:, :, None, None]).movedim(1, 3).reshape(*matrix.shape[:2], -1)


def _has_fast_convolution(x: Tensor) -> bool:
    readable = is_readable(x) and x.numel() > 0  # compilers and ONNX prefer plain products
    return readable and x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _halves(weights: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """W₁ and W₂ of (2, D, C), for matrices with this many rows and columns."""
    return weights[0, :, :rows], weights[1, :, :columns]


def random_maclaurin_factored(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Returns the features of Σ_n left_n right_nᵀ as the literature computes them, at every location.

    Σ_n (W₁ left_n) ∘ (W₂ right_n) / √D, with (B, N, D) tensors; meant as a reference.

    Args:
        left: (B, N, C₁).
        right: (B, N, C₂).
        weights: (2, D, C).

    Returns:
        (B, D).
    """
    first, second = _halves(weights.to(left.dtype), left.shape[-1], right.shape[-1])
    return ((left @ first.mT) * (right @ second.mT)).sum(1) / weights.shape[1] ** 0.5


@register("vector", "random_maclaurin", "random_maclaurin(24)", "random_maclaurin(24, learnable=True)")
class RandomMaclaurin(Vector):
    """Random Maclaurin features with ``dim`` dimensions: see `polycov.functional.random_maclaurin`.

    Args:
        channels: C, the size of symmetric matrices, or (C₁, C₂) of any.
        dim: D.
        learnable: make the weights parameters, as in Gao et al. (compact bilinear pooling, CVPR 2016).
        seed: determines the weights.
    """

    is_sketch = True
    has_factored = True
    weights: Tensor

    def __init__(self, channels: Channels, dim: int, *, learnable: bool = False, seed: int = 0) -> None:
        super().__init__(channels, positive_int("random_maclaurin", "dim", dim, MOST_DIMENSIONS))
        generator = torch.Generator().manual_seed(seed)
        weights = random_signs(2, dim, max(self.sides), generator=generator)
        if true_or_false("random_maclaurin", "learnable", learnable):
            self.weights = nn.Parameter(weights)
        else:
            self.register_buffer("weights", weights)
        self.to(torch.get_default_device())

    def forward(self, matrix: Tensor) -> Tensor:
        return random_maclaurin(matrix, self.weights)

    def factored(self, left: Tensor, right: Tensor) -> Tensor:
        return random_maclaurin_factored(left, right, self.weights)
