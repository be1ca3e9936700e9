"""Brownian distance covariance: distances between channels in place of their inner products."""

import math

import torch
from torch import Tensor, nn

from polycov.errors import finite_number
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register


def channel_distances(matrix: Tensor, floor: float = 1e-5) -> Tensor:
    """Returns √(‖x_i − x_j‖² + ε) between the channels x_i, the columns of X with C = XᵀX, (B, C, C).

    ‖x_i − x_j‖² = C_ii + C_jj − 2 C_ij, so that the second moment is all that is needed.

    Args:
        matrix: C, (B, C, C).
        floor: ε over the mean of the diagonal; it keeps the gradient finite where channels are equal.

    Example:
        >>> channel_distances(torch.tensor([[[9.0, 0.0], [0.0, 16.0]]]), 0.0)
        tensor([[[0., 5.],
                 [5., 0.]]])
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    squares = (diagonal.unsqueeze(-1) + diagonal.unsqueeze(-2) - 2 * matrix).clamp(min=0)
    total = squares + floor * diagonal.mean(-1)[:, None, None]
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1.0).sqrt(), 0.0)


def double_centre(matrix: Tensor) -> Tensor:
    """Returns a matrix without the means of its rows and columns, (B, C, C).

    Example:
        >>> double_centre(torch.tensor([[[0.0, 5.0], [5.0, 0.0]]]))
        tensor([[[-2.5000,  2.5000],
                 [ 2.5000, -2.5000]]])
    """
    rows = matrix.mean(-1, keepdim=True)
    return matrix - rows - matrix.mean(-2, keepdim=True) + rows.mean(-2, keepdim=True)


@register("function", "brownian", "brownian(-5.3)")
class Brownian(MatrixFunction):
    """The Brownian distance covariance matrix: distances between channels, double-centred.

    D_ij = √(e^t (‖x_i − x_j‖² + ε)) with a learnable t; the result is D − row means − column means + mean. It is a
    function of the second moment C, so it follows ``bilinear``. The inner product of two such matrices is the squared
    Brownian distance covariance of their features. ε is 1e-5 of the mean square of a channel, where the paper adds a
    constant, so that the feature scales with the features.

    Args:
        t: the initial t. The paper starts at log(1/(2 N)) with N locations; the default is that of 10 × 10 locations.

    Reference: Xie, Long, Lv, Wang, Li, "Joint Distribution Matters: Deep Brownian Distance Covariance for Few-Shot
    Classification", CVPR 2022.
    """

    degree = 0.5
    products = 0
    wide = True  # distances that are small compared with the channels are differences of nearly equal numbers
    routes = ("covariance",)

    def __init__(self, t: float = round(-math.log(200), 1)) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.tensor(float(finite_number("brownian", "t", t, -60, 60))))

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return double_centre(channel_distances(matrix)) * (0.5 * self.t.to(matrix.dtype)).exp()
