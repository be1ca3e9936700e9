"""The statements of "Compact Approximation for Polynomial of Covariance Feature", in its order.

Expectations are exact, not sampled: with few channels, all values of the random parameters θ can be listed. The left
side is always a loop over the formula of the paper in float64.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from polycov.pooling.pool import SecondOrderPool
from polycov.pooling.vectors.random_maclaurin import RandomMaclaurin
from polycov.pooling.vectors.tensor_sketch import TensorSketch

CHANNELS = 2
X = torch.randn(1, 5, CHANNELS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(1, 4, CHANNELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Array = np.ndarray


def bilinear(x: Tensor) -> Array:
    """Eq. (1), by a loop: the sum of x xᵗ over the local features."""
    total = np.zeros((x.shape[-1], x.shape[-1]))
    for row in x[0].numpy():
        total += np.outer(row, row)
    return total


def polynomial(matrix: Array, coefficients: tuple[float, ...]) -> Array:
    """The sum of c_k C^k, by a loop."""
    total, power = np.zeros_like(matrix), np.eye(len(matrix))
    for coefficient in coefficients:
        total, power = total + coefficient * power, power @ matrix
    return total


def all_parameters(pool: SecondOrderPool) -> Iterator[None]:
    """Sets the sketch of a pool to every possible value of θ, each equally probable."""
    vector = pool.vector
    if isinstance(vector, RandomMaclaurin):
        for signs in itertools.product((-1.0, 1.0), repeat=vector.weights.numel()):
            vector.weights.copy_(torch.tensor(signs).view_as(vector.weights))
            yield
        return
    assert isinstance(vector, TensorSketch)
    for signs in itertools.product((-1.0, 1.0), repeat=vector.signs.numel()):
        for hashes in itertools.product(range(vector.out_features), repeat=vector.hashes.numel()):
            vector.signs.copy_(torch.tensor(signs).view_as(vector.signs))
            vector.hashes.copy_(torch.tensor(hashes).view_as(vector.hashes))
            vector.build()
            yield


def inner_products(spec: str, other: str | None = None) -> Array:
    """⟨φ_θ(X), φ_θ(Y)⟩ for every θ, with the paper's evaluation on local features."""
    one = SecondOrderPool(CHANNELS, spec, route="paper")
    two = SecondOrderPool(CHANNELS, other or spec, route="paper")
    return np.array(
        [float((one(X) @ two(Y).mT)[0, 0]) for _ in zip(all_parameters(one), all_parameters(two), strict=True)]
    )


SKETCHES = ("random_maclaurin(1)", "tensor_sketch(2)")
QUADRATIC = (0.7, -0.4, 0.3)  # b, and x·r(x)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_equation_2_compact_bilinear_pooling_preserves_inner_products_in_expectation(sketch: str) -> None:
    expected = float((bilinear(X) * bilinear(Y)).sum())
    assert np.isclose(inner_products(f"bilinear | identity | {sketch}").mean(), expected, rtol=1e-12)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_proposition_1_any_polynomial_with_its_constant_term(sketch: str) -> None:
    expected = float((polynomial(bilinear(X), QUADRATIC) * polynomial(bilinear(Y), QUADRATIC)).sum())
    found = inner_products(f"bilinear | polynomial{QUADRATIC} | {sketch}")
    assert np.isclose(found.mean(), expected, rtol=1e-12)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_lemma_1_powers_of_the_covariance_from_the_gram_matrix(power: int) -> None:
    rows = X[0].numpy()
    gram = np.array([[np.dot(a, b) for b in rows] for a in rows])
    weights = np.linalg.matrix_power(gram, power - 1)
    pairs = sum(weights[i, j] * np.outer(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows))
    np.testing.assert_allclose(pairs, np.linalg.matrix_power(bilinear(X), power), rtol=1e-10)


@pytest.mark.parametrize("sketch", SKETCHES)
@pytest.mark.parametrize(("m", "n"), [(1, 2), (2, 2), (2, 0), (0, 0)])
def test_lemmas_2_3_and_4_monomials_and_constants(sketch: str, m: int, n: int) -> None:
    one, two = ((0.0,) * k + (1.0,) + (0.0,) * (2 - k) for k in (m, n))
    expected = float((polynomial(bilinear(X), one) * polynomial(bilinear(Y), two)).sum())
    found = inner_products(f"bilinear | polynomial{one} | {sketch}", f"bilinear | polynomial{two} | {sketch}")
    assert np.isclose(found.mean(), expected, rtol=1e-12)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_the_variance_is_that_of_the_sketch_of_the_polynomial(sketch: str) -> None:
    """The weights r(S) do not depend on θ: the feature of the polynomial is the sketch of the matrix q(C)."""
    pool = SecondOrderPool(CHANNELS, f"bilinear | identity | {sketch}", route="covariance")
    p, q = (torch.from_numpy(polynomial(bilinear(x), QUADRATIC))[None] for x in (X, Y))
    direct = []
    for _ in all_parameters(pool):
        direct.append(float((pool.vector(p) @ pool.vector(q).mT)[0, 0]))
    found = inner_products(f"bilinear | polynomial{QUADRATIC} | {sketch}")
    np.testing.assert_allclose(found, direct, rtol=1e-9, atol=1e-9)
    assert np.isclose(found.var(), np.var(direct), rtol=1e-9)


def newton_schulz(matrix: Array, iterations: int) -> tuple[Array, Array]:
    """Y_k and Z_k as printed."""
    eye = np.eye(len(matrix))
    y, z = matrix, eye
    for _ in range(iterations):
        y, z = 0.5 * y @ (3 * eye - z @ y), 0.5 * (3 * eye - z @ y) @ z
    return y, z


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_r_is_z_and_the_constant_term_is_zero(iterations: int) -> None:
    covariance = bilinear(X)
    unit = covariance / np.trace(covariance)
    y, z = newton_schulz(unit, iterations)
    np.testing.assert_allclose(y, unit @ z, rtol=1e-12)  # so r(A) = Z_k
    zero, _ = newton_schulz(np.zeros((3, 3)), iterations)
    np.testing.assert_array_equal(zero, 0)  # so b = 0
    feature = SecondOrderPool(CHANNELS, f"bilinear | sqrt({iterations}) | flatten")(X)
    np.testing.assert_allclose(feature.view(2, 2).numpy(), np.sqrt(np.trace(covariance)) * y, rtol=1e-9)


@pytest.mark.parametrize("route", ["covariance", "gram", "paper"])
def test_algorithm_3_with_the_identity_of_the_gram_matrix(route: str) -> None:
    """As printed but for its I_d, which must be n × n: on the Gram matrix of n = 5 features of d = 2 channels."""
    pool = SecondOrderPool(CHANNELS, "bilinear | sqrt(5) | random_maclaurin(7)", route=route)  # type: ignore[arg-type]
    rows = X[0].numpy()
    gram = rows @ rows.T
    trace = np.trace(gram)
    assert np.eye(CHANNELS).shape != gram.shape  # Z_0 = I_d would not fit
    weights = newton_schulz(gram / trace, 5)[1] / np.sqrt(trace)
    assert isinstance(pool.vector, RandomMaclaurin)
    first, second = pool.vector.weights.double().numpy()
    psi_1, psi_2 = first @ rows.T, second @ rows.T  # D × n
    expected = ((psi_1 @ weights) * psi_2).sum(1) / np.sqrt(7)
    np.testing.assert_allclose(pool(X)[0].numpy(), expected, rtol=1e-9)


def test_algorithm_1_needs_a_transform_of_each_factor() -> None:
    """As printed, fft⁻¹(fft(ψ₁ ∘ ψ₂)) = ψ₁ ∘ ψ₂, which is no sketch of the product; fft⁻¹(fft ψ₁ ∘ fft ψ₂) is."""
    pool = SecondOrderPool(CHANNELS, "bilinear | identity | tensor_sketch(2)")
    printed, meant = [], []
    for _ in all_parameters(pool):
        assert isinstance(pool.vector, TensorSketch)
        sketches = {}
        for name, x in (("x", X), ("y", Y)):
            psi = np.zeros((2, x.shape[1], 2))  # of both hashes, at each location
            for k, a in itertools.product(range(2), range(CHANNELS)):
                psi[k, :, pool.vector.hashes[k, a]] += float(pool.vector.signs[k, a]) * x[0, :, a].numpy()
            spectrum = np.fft.fft(psi[0]) * np.fft.fft(psi[1])
            sketches[name] = (psi[0] * psi[1]).sum(0), np.fft.ifft(spectrum).real.sum(0)
        printed.append(sketches["x"][0] @ sketches["y"][0])
        meant.append(sketches["x"][1] @ sketches["y"][1])
    expected = float((bilinear(X) * bilinear(Y)).sum())
    assert np.isclose(np.mean(meant), expected, rtol=1e-12)
    assert not np.isclose(np.mean(printed), expected, rtol=0.05)


def test_the_norm_of_the_difference_to_the_identity_is_below_one_only_at_full_rank() -> None:
    """Of a Gram matrix with more locations than channels it is 1; the iteration converges all the same, to 0 there."""
    rows = X[0].numpy()  # 5 locations, 2 channels
    for matrix, expected in ((rows.T @ rows, "below"), (rows @ rows.T, "one")):
        unit = matrix / np.trace(matrix)
        norm = np.linalg.norm(unit - np.eye(len(unit)), 2)
        assert norm < 1 if expected == "below" else np.isclose(norm, 1, rtol=1e-12)
        y, _ = newton_schulz(unit, 12)
        np.testing.assert_allclose(y @ y, unit, atol=1e-7)
