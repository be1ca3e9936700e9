"""What all sketches share: they preserve inner products on average, with a variance that falls as 1/D."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import polycov
from polycov import functional as F
from polycov.pooling.pool import SecondOrderPool
from polycov.pooling.vectors.base import Vector
from polycov.pooling.vectors.count_sketch import CountSketch
from polycov.pooling.vectors.random_maclaurin import RandomMaclaurin
from polycov.pooling.vectors.rotated import Rotated
from polycov.pooling.vectors.tensor_sketch import TensorSketch
from samples import features

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SKETCHES: dict[str, Callable[..., Vector]] = {
    "tensor_sketch": TensorSketch,
    "random_maclaurin": RandomMaclaurin,
    "count_sketch": CountSketch,
    "rotated": Rotated,
}
CHANNELS = 5


def reference(x: torch.Tensor, function: str) -> Matrix:
    """q(C) by numpy: on eigenvalues for the iteration, by powers for the polynomial."""
    c: Matrix = np.cov(x.numpy().T, bias=True)
    if function == "sqrt(5)":
        values, vectors = np.linalg.eigh(c)
        t = values.sum()
        y, z = values / t, np.ones_like(values)
        for _ in range(5):
            step = 0.5 * (3 - z * y)
            y, z = y * step, step * z
        root: Matrix = np.sqrt(t) * (vectors * y) @ vectors.T
        return root
    return 0.5 * np.eye(len(c)) + c - 0.25 * c @ c


def kernel(function: str, vector: str, dim: int, seeds: int) -> tuple[Matrix, float]:
    """⟨φ(X), φ(Y)⟩ over many seeds, and the exact ⟨q(C_x), q(C_y)⟩ by numpy."""
    x, y = features(1, 20, CHANNELS, seed=1), features(1, 20, CHANNELS, seed=2)
    matrices = polycov.create_pool(f"covariance | {function} | flatten", CHANNELS).double()(torch.cat([x, y]))
    matrices = matrices.view(2, CHANNELS, CHANNELS)
    estimates = []
    for seed in range(seeds):
        a, b = SKETCHES[vector](CHANNELS, dim, seed=seed)(matrices)
        estimates.append(float(a @ b))
    return np.array(estimates), float((reference(x[0], function) * reference(y[0], function)).sum())


@pytest.mark.parametrize("function", ["sqrt(5)", "polynomial(0.5, 1, -0.25)"])
@pytest.mark.parametrize("vector", SKETCHES)
def test_a_sketch_is_unbiased(function: str, vector: str) -> None:
    estimates, exact = kernel(function, vector, 8, 1500)
    error = estimates.std(ddof=1) / np.sqrt(len(estimates))
    assert error > 0
    assert abs(estimates.mean() - exact) < 4 * error


@pytest.mark.parametrize("vector", ["tensor_sketch", "random_maclaurin"])
def test_the_variance_falls_as_one_over_the_dimension(vector: str) -> None:
    narrow = kernel("sqrt(5)", vector, 16, 1200)[0].var()
    wide = kernel("sqrt(5)", vector, 64, 1200)[0].var()
    assert 3 < narrow / wide < 5.3


def test_the_variance_of_the_count_sketch_is_lower() -> None:
    # Two of m entries share one of D equal buckets with probability (m/D − 1)/(m − 1), not 1/D: for m = 15 and D = 8
    # the variance is about 1 − D/m = 0.47 of that of the tensor sketch.
    count = kernel("sqrt(5)", "count_sketch", 8, 1200)[0].var()
    tensor = kernel("sqrt(5)", "tensor_sketch", 8, 1200)[0].var()
    assert 0.3 < count / tensor < 0.65


def test_the_variance_of_rotated_entries_is_that_of_drawing_without_replacement() -> None:
    # For one rotation and all draws of D of the m products z, the variance is m² (1 − D/m) S² / D, S² that of z.
    p, q = matrices().numpy()
    vector = Rotated(CHANNELS, 6).double()
    u = vector.rotation.numpy()
    a, b = (triangle(u @ m @ u.T) for m in (p, q))
    z, estimates = a * b, []
    for seed in range(3000):
        vector.entries = torch.from_numpy(np.random.default_rng(seed).permutation(15)[:6])
        x, y = vector(torch.from_numpy(np.stack([p, q])))
        estimates.append(float(x @ y))
    expected = 15**2 * (1 - 6 / 15) * z.var(ddof=1) / 6
    assert np.var(estimates) == pytest.approx(expected, rel=0.1)


def test_the_variance_of_rotated_entries_is_below_that_of_random_maclaurin() -> None:
    rotation = kernel("sqrt(5)", "rotated", 8, 1200)[0].var()
    assert rotation < 0.6 * kernel("sqrt(5)", "random_maclaurin", 8, 1200)[0].var()


@pytest.mark.parametrize("vector", ["count_sketch", "rotated"])
@pytest.mark.parametrize("dim", [15, 16, 40])
def test_a_sketch_of_the_triangle_is_exact_from_its_size(vector: str, dim: int) -> None:
    estimates, exact = kernel("sqrt(5)", vector, dim, 5)
    np.testing.assert_allclose(estimates, exact, rtol=1e-12 if vector == "count_sketch" else 1e-6)


def triangle(q: Matrix) -> Matrix:
    return np.array([q[a, b] * (1 if a == b else np.sqrt(2)) for a in range(len(q)) for b in range(a, len(q))])


def by_definition(vector: Vector, q: Matrix) -> Matrix:
    """The sketch of a matrix by its definition, entry by entry."""
    c, out = len(q), np.zeros(vector.out_features)
    if isinstance(vector, TensorSketch):
        (h1, h2), (s1, s2) = vector.hashes.numpy(), vector.signs.numpy()
        for a in range(c):
            for b in range(c):
                out[(h1[a] + h2[b]) % len(out)] += s1[a] * s2[b] * q[a, b]
    elif isinstance(vector, CountSketch):
        for i, entry in enumerate(vector.order.tolist()):
            out[i % len(out)] += float(vector.signs[entry]) * triangle(q)[entry]
    elif isinstance(vector, Rotated):
        kept = triangle(vector.rotation.numpy() @ q @ vector.rotation.numpy().T)[vector.entries.numpy()]
        out[: len(kept)] = kept * np.sqrt(c * (c + 1) / 2 / len(kept))
    elif isinstance(vector, RandomMaclaurin):
        w1, w2 = vector.weights.numpy()
        for j in range(len(out)):
            out[j] = w1[j] @ q @ w2[j] / np.sqrt(len(out))
    return out


def matrices() -> torch.Tensor:
    rows = features(2, 9, CHANNELS)
    return rows.mT @ rows


@pytest.mark.parametrize("dim", [1, 6, 600])
@pytest.mark.parametrize("vector", SKETCHES)
def test_a_sketch_follows_its_definition(vector: str, dim: int) -> None:
    module = SKETCHES[vector](CHANNELS, dim, seed=3).double()
    q = matrices()
    expected = np.stack([by_definition(module, matrix) for matrix in q.numpy()])
    np.testing.assert_allclose(module(q).numpy(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(1, 7, 7), (3, 16, 16), (16, 5, 9), (2, 12, 8)])
@pytest.mark.parametrize("threads", [1, 2])
def test_random_maclaurin_as_a_convolution_follows_the_formula(shape: tuple[int, ...], threads: int) -> None:
    # In float32 on a CPU the products are convolutions, for which torch has one way per number of threads.
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(*shape, generator=generator)
    weights = torch.randn(2, 700, max(shape[1:]), generator=generator).sign()
    seen = torch.randn(shape[0], 700, generator=generator)
    (left, right), exact = weights.double(), q.double()
    left, right = left[:, : shape[1]], right[:, : shape[2]]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        leaf = q.mT.contiguous().mT.requires_grad_()  # columns are contiguous
        result = F.random_maclaurin(leaf, weights)
        (gradient,) = torch.autograd.grad(result, leaf, seen)
    finally:
        torch.set_num_threads(before)
    expected = torch.stack([((left @ matrix) * right).sum(1) for matrix in exact]) / 700**0.5
    np.testing.assert_allclose(result.detach().numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    slopes = torch.stack([left.T @ (g[:, None] * right) for g in seen.double()]) / 700**0.5
    np.testing.assert_allclose(gradient.numpy(), slopes.numpy(), rtol=1e-4, atol=1e-4)


def test_the_functions_agree_with_their_modules() -> None:
    q = matrices()
    ts, rm, cs = TensorSketch(CHANNELS, 8), RandomMaclaurin(CHANNELS, 8), CountSketch(CHANNELS, 8)
    torch.testing.assert_close(F.tensor_sketch(q, ts.hashes, ts.signs, 8), ts(q))
    torch.testing.assert_close(F.random_maclaurin(q, rm.weights), rm(q))
    turned = Rotated(CHANNELS, 8)
    torch.testing.assert_close(F.rotated(q, turned.rotation, turned.entries, 8), turned(q))
    torch.testing.assert_close(F.count_sketch(q, cs.order, cs.signs, 8), cs(q))


@pytest.mark.parametrize("vector", SKETCHES)
def test_different_seeds_give_different_sketches(vector: str) -> None:
    x = features(1, 9, CHANNELS)
    a, b = (SecondOrderPool(CHANNELS, f"covariance | sqrt(5) | {vector}(8)", seed=s).double() for s in (0, 1))
    assert not torch.allclose(a(x), b(x))


@pytest.mark.parametrize("vector", ["triu", "count_sketch(8)", "tensor_sketch(8)"])
def test_buffers_in_half_precision_keep_the_weights_exact(vector: str) -> None:
    x = features(1, 9, CHANNELS, dtype=torch.float32)
    pool: nn.Module = SecondOrderPool(CHANNELS, f"covariance | sqrt(5) | {vector}")
    expected = pool(x)
    assert torch.equal(pool.bfloat16()(x), expected)


@pytest.mark.parametrize("name", ["ipccp-ts", "ipccp-cs", "ipccp-rm", "ipccp-rot"])
def test_a_state_dict_of_another_dimension_is_rejected(name: str) -> None:
    state = polycov.create_pool(name, CHANNELS, dim=64).state_dict()
    with pytest.raises(RuntimeError, match=r"saved with 64 dimensions, expected 8|size mismatch"):
        polycov.create_pool(name, CHANNELS, dim=8).load_state_dict(state)
