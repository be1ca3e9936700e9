"""Weights of a pooled feature, pulled back through the stages that follow the vector."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from polycov.pooling.pool import Pool
from polycov.pooling.post.base import Post

Pullback = Callable[[Tensor], tuple[Tensor, Tensor]]  # weights of the output to weights of the input, and a constant


def through_posts(pool: Pool, weights: Tensor, vector: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Returns weights of the feature as weights of the vector, (B, D'), and a constant, (B,).

    Args:
        pool: pool that made the feature.
        weights: of a score ⟨weights, feature⟩, (B, D).
        vector: gives the vector before the stages; it is computed only if needed.
    """
    stages = cast(list[Post], list(pool.post))
    if all(stage.affine for stage in stages):
        steps = [_from_zero(stage) for stage in stages]
    else:
        steps, point = [], vector()
        for stage in stages:
            with torch.no_grad():
                output = stage(point)
            affine = stage.affine or stage.degree is None
            steps.append(_affine(stage, point, output) if affine else _elementwise(point, output))
            point = output
    constant = weights.new_zeros(len(weights))
    for step in reversed(steps):
        weights, offset = step(weights)
        constant = constant + offset
    return weights, constant


def _from_zero(stage: Post) -> Pullback:
    """An affine stage, without a vector."""

    def pull_back(weights: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            zero = weights.new_zeros(len(weights), stage.in_features).requires_grad_()
            output = stage(zero)
            (inner,) = torch.autograd.grad(output, zero, weights)
        return inner, (weights * output.detach()).sum(-1)

    return pull_back


def factors_of(vector: Tensor, output: Tensor) -> Tensor:
    """Returns the factors by which a normalisation multiplies the entries of a vector; 0 for entries of 0."""
    return torch.where(vector == 0, 0.0, output / torch.where(vector == 0, 1.0, vector))


def _elementwise(vector: Tensor, output: Tensor) -> Pullback:
    """A normalisation, as the factors by which it multiplies this vector."""
    factors = factors_of(vector, output)
    return lambda weights: (weights * factors, weights.new_zeros(len(weights)))


def _affine(stage: Callable[[Tensor], Tensor], vector: Tensor, output: Tensor) -> Pullback:
    """An affine stage, or the tangent of another at this vector."""

    def pull_back(weights: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = vector.detach().requires_grad_()
            (inner,) = torch.autograd.grad(stage(point), point, weights)
        return inner, (weights * output).sum(-1) - (inner * vector).sum(-1)

    return pull_back
