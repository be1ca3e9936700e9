"""How well a compact feature preserves the inner products between samples."""

from torch import Tensor

from polycov.pooling.methods import method_spec
from polycov.pooling.spec import parse_spec


def kernel_error(compact: Tensor, full: Tensor) -> float:
    """Returns ‖K′ − K‖ / ‖K‖, the relative error of the inner products between samples, in float64.

    Args:
        compact: the compact features, (B, D), with K′ = compact compactᵀ.
        full: the features that they approximate, (B, D'), with K = full fullᵀ.

    Example:
        >>> kernel_error(torch.tensor([[2.0]]), torch.tensor([[1.0, 1.0]]))
        1.0
    """
    compact, full = compact.detach().double(), full.detach().double()
    kernel = full @ full.mT
    return float((compact @ compact.mT - kernel).norm() / kernel.norm())


def uncompressed(method: str) -> str | None:
    """Returns the spec of the feature whose inner products a compact method estimates.

    A sketch estimates the inner products of the matrix, which the upper triangle preserves. None if the method is no
    sketch, or if a stage follows the sketch (``cbp-ts``, ``ipccp-fit``) and changes its inner products.

    Args:
        method: the name of a method, or a spec.

    Raises:
        SpecError: if there is no such method, or the spec is invalid.

    Example:
        >>> uncompressed("ipccp-ts"), uncompressed("isqrt-cov"), uncompressed("cbp-ts")
        ('covariance | sqrt(5) | triu', None, None)
    """
    spec = parse_spec(method_spec(method))
    if spec.first_order or spec.post:
        return None
    moment, function, vector = spec.aggregation
    return f"{moment} | {function} | triu" if getattr(vector.stage.build, "is_sketch", False) else None
