"""How well a compact feature preserves the inner products between samples."""

from dataclasses import replace

from torch import Tensor

from polycov.pooling.methods import parse_method
from polycov.pooling.spec import Spec, parse_spec


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

    A sketch estimates the inner products of the matrix, which the upper triangle preserves, or all entries if it is not
    symmetric; features side by side, the sum of those of their parts. None if nothing is a sketch, or if a stage
    follows the sketch (``cbp-ts``, ``ipccp-fit``) and changes its inner products.

    Args:
        method: the name of a method, or a spec.

    Raises:
        SpecError: if there is no such method, or the spec is invalid.

    Example:
        >>> uncompressed("ipccp-ts"), uncompressed("isqrt-cov"), uncompressed("cbp-ts")
        ('covariance | sqrt(5) | triu', None, None)
    """
    spec = parse_method(method)
    exact = _exact(spec)
    return None if exact is None or exact == spec else str(exact)


def _exact(spec: Spec) -> Spec | None:
    """The spec with triangles in place of sketches; None if a stage follows a sketch."""
    blocks = [_exact(block) for block in spec.blocks]
    sketched = spec.any_stage("is_sketch")
    if (sketched and spec.post) or None in blocks:
        return None
    if not sketched or spec.first_order:
        return spec
    if blocks:
        return replace(spec, blocks=tuple(filter(None, blocks)))
    full = "flatten" if spec.cross else "triu"
    source = [spec.source] if spec.source is not None else []
    return parse_spec(" | ".join(map(str, [*source, *spec.aggregation[:2], full])))
