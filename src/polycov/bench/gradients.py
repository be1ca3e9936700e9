"""How exact gradients are, by condition number: those of the library beside formulas from elsewhere."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from polycov.bench import peers
from polycov.bench.tables import Row
from polycov.pooling.pool import SecondOrderPool

CONDITIONS = tuple(10.0**i for i in range(0, 13, 2))
EXACT = ("sqrt(exact)", "sqrt(100, gradient=lyapunov)")
APPROXIMATE = ("sqrt(5, gradient=lyapunov)", "sqrt_minimax(9, gradient=lyapunov)", "sqrt_taylor(11)", "sqrt_pade(5)")
ITERATED = (3, 5, 7, 12, 20, 30, 100)
ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "eigh, autograd": peers.eigh_root,
    "svd, autograd": peers.svd_root,
    "MPN-COV": peers.mpn_cov_root,
    "SVD-Clip": peers.svd_clip_root,
    "SVD-Taylor": peers.svd_taylor_root,
    "Lyapunov": peers.lyapunov_root,
}
LOCATIONS, CHANNELS, SAMPLES = 64, 16, 16


def conditioned(condition: float, seed: int = 0) -> Tensor:
    """Returns tokens (B, N, C) in float32 of mean 0 whose covariance has eigenvalues from 1 to 1/condition.

    They are equally far apart on a logarithmic scale. At condition 1 all are equal, exactly: the tokens are columns of
    a Hadamard matrix.
    """
    if condition == 1:
        signs = torch.ones(1, 1)
        while len(signs) < LOCATIONS:
            signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
        return signs[:, 1 : CHANNELS + 1].expand(SAMPLES, -1, -1).contiguous()
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(SAMPLES, LOCATIONS, CHANNELS, generator=generator, dtype=torch.float64)
    left = torch.linalg.qr(draw - draw.mean(1, keepdim=True)).Q
    right = torch.linalg.qr(torch.randn(SAMPLES, CHANNELS, CHANNELS, generator=generator, dtype=torch.float64)).Q
    singular = condition ** (-0.5 * torch.linspace(0, 1, CHANNELS, dtype=torch.float64))
    return ((left * singular) @ right.mT).float()


def directions() -> Tensor:
    """Returns symmetric matrices W, (B, C, C): the gradient is that of ⟨W, √C⟩."""
    draw = torch.randn(SAMPLES, CHANNELS, CHANNELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return draw + draw.mT


def exact_gradient(tokens: Tensor, along: Tensor, iterations: int | None = None) -> Tensor:
    """Returns the gradient of ⟨W, f(C)⟩ with respect to tokens, (B, N, C), in float64.

    f is the root, or k Newton–Schulz iterations of it. The eigenvalues of C are the squares of singular values of the
    centred tokens, which are exact to eps of the largest, where those of C itself would be to √eps.

    Args:
        tokens: (B, N, C).
        along: W, (B, C, C).
        iterations: k; None for the root itself.
    """
    x = tokens.double()
    rows = (x - x.mean(1, keepdim=True)) / x.shape[1] ** 0.5
    singular, right = torch.linalg.svd(rows, full_matrices=False)[1:]
    vectors, inner = right.mT, right @ along @ right.mT
    values, trace = singular.square(), singular.square().sum(-1)[:, None, None]
    if iterations is None:
        full = inner / (singular.unsqueeze(-1) + singular.unsqueeze(-2))
    else:
        full = _iterated(values.unsqueeze(-1) / trace, values.unsqueeze(-2) / trace, inner, iterations) / trace.sqrt()
    grad = 2 * rows @ (vectors @ full @ vectors.mT) / x.shape[1] ** 0.5
    return grad - grad.mean(1, keepdim=True)


def _iterated(a: Tensor, b: Tensor, inner: Tensor, iterations: int) -> Tensor:
    """√t times the gradient of √t y_k(C/t), t = tr C, in the eigenvectors: divided differences, and what t adds."""
    y, slope = _divided_difference(a, b, iterations)
    result = slope * inner
    size = y.squeeze(-1)
    change = 0.5 * (size * inner.diagonal(dim1=1, dim2=2)).sum(-1)
    change = change - (result.diagonal(dim1=1, dim2=2) * a.squeeze(-1)).sum(-1)
    return result + torch.diag_embed(change.unsqueeze(-1).expand(-1, inner.shape[-1]))


def _divided_difference(a: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """y_k(a), and (y_k(a) − y_k(b)) / (a − b), by dual numbers where a ≈ b."""
    (x, dx), (z, _) = _dual(a, iterations), _dual(b, iterations)
    near = (a - b).abs() <= 1e-5 * torch.maximum(a, b)
    middle = _dual(0.5 * (a + b), iterations)[1]
    return x, torch.where(near, torch.where(a == b, dx, middle), (x - z) / torch.where(near, 1.0, a - b))


def _dual(x: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """y_k(x) and its derivative, by m ← m t² and y ← y t with t = (3 − m)/2."""
    m, dm, y, dy = x, torch.ones_like(x), x, torch.ones_like(x)
    for _ in range(iterations):
        t, dt = 1.5 - 0.5 * m, -0.5 * dm
        y, dy = y * t, dy * t + y * dt
        m, dm = m * t * t, dm * t * t + 2 * m * t * dt
    return y, dy


def _of_pool(function: str, tokens: Tensor, along: Tensor) -> Tensor:
    pool = SecondOrderPool(CHANNELS, f"covariance | {function} | flatten", check_finite=False)
    x = tokens.clone().requires_grad_()
    (grad,) = torch.autograd.grad((pool(x) * along.flatten(1).to(x.dtype)).sum(), x)
    return grad


def _of_root(root: Callable[[Tensor], Tensor], dtype: torch.dtype, tokens: Tensor, along: Tensor) -> Tensor:
    x = tokens.to(dtype).clone().requires_grad_()
    rows = (x - x.mean(1, keepdim=True)) / LOCATIONS**0.5
    try:
        (grad,) = torch.autograd.grad((root(rows.mT @ rows) * along.to(dtype)).sum(), x)
    except RuntimeError:  # of LAPACK
        return torch.full_like(x, torch.nan)
    return grad


def methods() -> Iterator[tuple[str, str, int | None, Callable[[Tensor, Tensor], Tensor]]]:
    """Yields group, name, the iterations whose derivative is the right one, and the function that computes it."""
    for function in EXACT:
        yield "polycov", function, None, partial(_of_pool, function)
    for function in APPROXIMATE:
        yield "approximate", function, None, partial(_of_pool, function)
    for name, root in ROOTS.items():
        for dtype in (torch.float32, torch.float64):
            yield "elsewhere", f"{name}, {str(dtype).removeprefix('torch.')}", None, partial(_of_root, root, dtype)
    for k in ITERATED:
        yield "polycov", f"sqrt({k})", k, partial(_of_pool, f"sqrt({k})")
        plain = partial(peers.newton_schulz_root, iterations=k)
        yield "elsewhere", f"iSQRT-COV, k={k}, float32", k, partial(_of_root, plain, torch.float32)


def gradients(advance: Callable[[], None] = lambda: None) -> Iterator[Row]:
    """Yields the median and the largest relative error of the gradient, for each method and condition number.

    The error of a sample that is not finite is infinite.
    """
    along = directions()
    for condition in CONDITIONS:
        tokens = conditioned(condition)
        for group, name, iterations, compute in methods():
            exact = exact_gradient(tokens, along, iterations)
            difference = compute(tokens, along).double() - exact
            errors = difference.flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
            errors = torch.where(errors.isfinite(), errors, torch.inf)
            yield {
                "group": group,
                "method": name,
                "iterations": iterations,
                "condition": condition,
                "median_error": float(errors.median()),
                "largest_error": float(errors.max()),
                "not_finite": int(errors.isinf().sum()),
                "samples": SAMPLES,
            }
            advance()
