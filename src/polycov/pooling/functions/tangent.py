"""The covariance in the tangent space at the identity, in two geometries of positive definite matrices.

A linear classifier in a tangent space at I is what Chen et al. (ICLR 2025) compare matrix functions with. In the
log-Euclidean geometry the tangent vector is log C (``log(exact)``), in the power-Euclidean one (C^θ − I)/θ
(``tangent(θ)``), which becomes log C as θ → 0, and in the log-Cholesky one the logarithm of the Cholesky factor
(``log_cholesky``). Their other reading, a Riemannian classifier in the power-Euclidean geometry, is ``power(θ)``.

Reference: Chen, Song, Wu, Liu, Sebe, "Understanding Matrix Function Normalizations in Covariance Pooling through the
Lens of Riemannian Geometry", ICLR 2025.
"""

import torch
from torch import Tensor

from polycov.errors import PolycovError, finite_number
from polycov.pooling.functions.base import MatrixFunction, add_identity
from polycov.pooling.functions.decompositions import cholesky
from polycov.pooling.functions.spectral import Power, SpectralFunction
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register
from polycov.pooling.transforms import is_readable


@register("function", "tangent", "tangent(0.5)")
class Tangent(SpectralFunction):
    """(C^θ − I) / θ, the tangent vector at I of the power-Euclidean geometry, by eigendecomposition.

    Args:
        exponent: θ > 0.
    """

    def __init__(self, exponent: float = 0.5) -> None:
        super().__init__(Power(finite_number("tangent", "exponent", exponent, 0, 100)))
        self.exponent = exponent

    def _size(self, root: Tensor) -> Tensor:
        return (root ** (2 * self.exponent) / self.exponent)[:, None, None]

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return add_identity(self._size(root) * super().forward(matrix, root, algorithm), self.constant(root))

    def quotient(self, gram: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return self._size(root) * super().quotient(gram, root, algorithm)

    def constant(self, root: Tensor) -> Tensor:
        return torch.full_like(root, -1 / self.exponent)


def log_cholesky(matrix: Tensor) -> Tensor:
    """Returns ⌊L⌋ + ⌊L⌋ᵀ + 2 log diag(L) for C = L Lᵀ, where ⌊L⌋ is L without its diagonal.

    It is the logarithm at I of the log-Cholesky geometry (Lin, "Riemannian Geometry of Symmetric Positive Definite
    Matrices via Cholesky Decomposition", SIAM J. Matrix Anal. Appl. 2019).

    Args:
        matrix: symmetric positive definite C, (B, C, C).

    Raises:
        PolycovError: if a matrix is not positive definite.

    Example:
        >>> log_cholesky(torch.tensor([[[1.0, 2.0], [2.0, 5.0]]]))
        tensor([[[0., 2.],
                 [2., 0.]]])
    """
    factor = cholesky(matrix)
    if is_readable(factor) and bool(factor.isnan().any()):
        raise PolycovError("Expected positive definite matrices, got some that are not, or have NaN or Inf.")
    return _from_factor(factor, torch.ones_like(matrix[:, 0, 0]))


def _from_factor(factor: Tensor, scale: Tensor) -> Tensor:
    """The logarithm of scale · L, with one scale per sample, (B,)."""
    lower = factor.tril(-1) * scale[:, None, None]
    logs = factor.diagonal(dim1=-2, dim2=-1).log() + scale.log().unsqueeze(-1)
    return lower + lower.mT + torch.diag_embed(2 * logs)


@register("function", "log_cholesky", "log_cholesky(1e-06)")
class LogCholesky(MatrixFunction):
    """The logarithm of the Cholesky factor of C + floor · tr C · I: see `polycov.functional.log_cholesky`.

    Unlike a function of eigenvalues it depends on the order of the channels.

    Args:
        floor: what is added to the diagonal, as a fraction of the trace.
    """

    products = None
    wide = True
    routes = ("covariance",)

    def __init__(self, floor: float = 1e-6) -> None:
        super().__init__()
        self.floor = finite_number("log_cholesky", "floor", floor, 0, 1)

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        raised = add_identity(matrix, torch.full_like(root, self.floor))
        return _from_factor(cholesky(raised), root)
