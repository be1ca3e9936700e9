"""The sparse inverse of the covariance: partial correlations between channels."""

from torch import Tensor

from polycov.errors import finite_number, positive_int
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.newton_schulz import count_products, newton_schulz
from polycov.pooling.plan import Algorithm
from polycov.pooling.registry import register

INVERSE_ITERATIONS = 7  # of Newton–Schulz
SMALLEST_TRACE = 1e-7


def inverse(matrix: Tensor, iterations: int = INVERSE_ITERATIONS) -> Tensor:
    """Returns A⁻¹ ≈ Z_k² / tr A, with the Newton–Schulz iteration Z_k → (A / tr A)^(−1/2).

    After k iterations it is bounded: an eigenvalue 0 is mapped to 1.5^(2k) / tr A.

    Example:
        >>> inverse(torch.tensor([[[0.25, 0.0], [0.0, 0.75]]]), 12).diagonal(dim1=1, dim2=2)
        tensor([[4.0000, 1.3333]])
    """
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=SMALLEST_TRACE)[:, None, None]
    half = newton_schulz(matrix / trace, iterations, inverse=True)
    return half @ half / trace


def sparse_inverse(matrix: Tensor, steps: int = 5, rate: float = 1.0, sparsity: float = 0.01) -> Tensor:
    """Returns the S that minimises −log det S + tr(A S) + λ Σ|S_ij|, approximately, (B, C, C).

    It starts at A⁻¹ and takes projected gradient steps on the parts S⁺ ≥ 0 and S⁻ ≥ 0 of S = S⁺ − S⁻. With
    G = A − S⁻¹ and a rate η that falls linearly to 0 at the last step:
    S⁺ ← max(0, S⁺ − η (G + λ)) and S⁻ ← max(0, S⁻ − η (λ − G)). Inverses are those of `inverse`.

    Args:
        matrix: symmetric positive semidefinite A of trace 1, (B, C, C).
        steps: their number.
        rate: η of the first step.
        sparsity: λ.

    Example:
        >>> sparse_inverse(torch.tensor([[[0.5, 0.01], [0.01, 0.5]]])).round(decimals=2)
        tensor([[[ 1.9800, -0.0200],
                 [-0.0200,  1.9800]]])
    """
    current = inverse(matrix)
    for step in range(steps):
        slope = matrix - inverse(current)
        now = rate * (1 - step / max(steps - 1, 1))
        positive = (current.relu() - now * (slope + sparsity)).relu()
        negative = ((-current).relu() - now * (sparsity - slope)).relu()
        current = positive - negative
        current = 0.5 * (current + current.mT)
    return current


@register("function", "sparse_inverse", "sparse_inverse(5)")
class SparseInverse(MatrixFunction):
    """The sparse inverse of C / tr C, whose entries are partial correlations: see `polycov.functional.sparse_inverse`.

    The published code adds random numbers to the diagonal and divides the result by tr C. Neither is done here: the
    iteration needs no jitter, and the feature does not depend on the size of the features.

    Args:
        steps: the number of gradient steps.
        rate: their initial length.
        sparsity: λ.

    Reference: Rahman, Koniusz, Wang, Zhou, Moghadam, Sun, "Learning Partial Correlation based Deep Visual
    Representation for Image Classification", CVPR 2023 (iSICE).
    """

    routes = ("covariance",)
    wide = True  # gradients pass through inverses of inverses, whose size float32 may not hold

    def __init__(self, steps: int = 5, *, rate: float = 1.0, sparsity: float = 0.01) -> None:
        super().__init__()
        self.steps = positive_int("sparse_inverse", "steps", steps, 1000)
        self.rate = finite_number("sparse_inverse", "rate", rate, 0, 1e6)
        self.sparsity = finite_number("sparse_inverse", "sparsity", sparsity, 0, 1e6)
        self.products = (self.steps + 1) * (count_products(INVERSE_ITERATIONS) + 1)

    def forward(self, matrix: Tensor, root: Tensor, algorithm: Algorithm) -> Tensor:
        return sparse_inverse(matrix, self.steps, self.rate, self.sparsity)
