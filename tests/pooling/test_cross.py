"""Cross moments, their functions and their vectors agree with numpy, and with the algorithms of the literature."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import polycov
from polycov import functional as F
from polycov.pooling.cross_pool import CrossPool
from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
from samples import features, relative

Array = np.ndarray[Any, Any]
SIDES = (5, 3)


def pair(locations: int = 12, dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[Tensor, Tensor]:
    return features(batch, locations, SIDES[0], dtype=dtype), features(batch, locations, SIDES[1], seed=1, dtype=dtype)


def power_of_singular_values(matrix: Array, exponent: float) -> Array:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = np.where(s > 1e-12 * s.max(), s, 0.0)  # zeros but for rounding
    result: Array = (u * s[:, None] ** exponent) @ vt
    return result


def loop(x: Tensor, y: Tensor, weights: Array | None = None, centred: bool = False) -> Array:
    """Σ w l rᵀ, or the weighted mean about the means, location by location."""
    result = np.zeros((len(x), *SIDES))
    for b, (left, right) in enumerate(zip(x.numpy(), y.numpy(), strict=True)):
        w = np.ones(len(left)) if weights is None else weights[b]
        if centred:
            left, right, w = left - np.average(left, 0, w), right - np.average(right, 0, w), w / w.sum()
        for n in range(len(left)):
            result[b] += w[n] * np.outer(left[n], right[n])
    return result


def test_cross_moments_agree_with_a_loop() -> None:
    x, y = pair()
    for statistic, centred in (("bilinear", False), ("covariance", True)):
        pool = polycov.create_pool(f"cross({statistic}) | identity | flatten", SIDES)
        np.testing.assert_allclose(pool(x, y).view(2, *SIDES), loop(x, y, centred=centred), rtol=1e-12, atol=1e-12)
    weights = torch.rand(2, 12, dtype=torch.float64)
    pool = polycov.create_pool("cross(covariance) | identity | flatten", SIDES)
    expected = loop(x, y, weights.numpy(), centred=True)
    np.testing.assert_allclose(pool(x, y, weights).view(2, *SIDES), expected, rtol=1e-12, atol=1e-12)
    pool = polycov.create_pool("cross | identity | flatten", SIDES)
    effective = (weights.sum(1) / weights.square().sum(1)).numpy()[:, None, None]
    expected = effective * loop(x, y, weights.numpy())
    np.testing.assert_allclose(pool(x, y, weights).view(2, *SIDES), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("statistic", ["bilinear", "covariance", "gaussian"])
def test_a_cross_moment_is_a_block_of_the_moment_of_both(statistic: str) -> None:
    x, y = pair()
    extra = int(statistic == "gaussian")
    both = polycov.create_pool(f"{statistic} | identity | flatten", sum(SIDES))(torch.cat([x, y], -1))
    both = both.view(2, sum(SIDES) + extra, sum(SIDES) + extra)
    keep = [*range(SIDES[0]), *([sum(SIDES)] if extra else [])]
    expected = both[:, keep][:, :, SIDES[0] :]
    pool = polycov.create_pool(f"cross({statistic}) | identity | flatten", SIDES)
    torch.testing.assert_close(pool(x, y).view_as(expected), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("locations", [2, 12])  # of rank 2, and of full rank
@pytest.mark.parametrize("exponent", [0.5, 0.3])
def test_a_power_acts_on_the_singular_values(locations: int, exponent: float) -> None:
    x, y = pair(locations)
    expected = power_of_singular_values(loop(x, y), exponent)
    for dtype, bound in ((torch.float64, 1e-7), (torch.float32, 1e-5)):
        pool = polycov.create_pool(f"cross | power({exponent}) | flatten", SIDES)
        assert relative(pool(x.to(dtype), y.to(dtype)).view(2, *SIDES), torch.from_numpy(expected)) < bound


def test_newton_schulz_converges_to_the_root_and_is_a_polynomial_of_the_matrix() -> None:
    x, y = pair(40)
    exact = polycov.create_pool("cross-root", SIDES)(x, y)
    errors = [relative(polycov.create_pool("cross-root", SIDES, iterations=k)(x, y), exact) for k in (5, 8, 10, 12)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-12
    few = polycov.create_pool("cross | sqrt(3) | flatten", SIDES)
    moment = torch.from_numpy(loop(x, y))
    norm = torch.linalg.matrix_norm(moment, keepdim=True)
    u, s, vt = torch.linalg.svd(moment / norm, full_matrices=False)
    root, inverse = s.square(), torch.ones_like(s)
    for _ in range(3):  # √(s²), then 1/√ of that
        root, inverse = root * (1.5 - 0.5 * inverse * root), inverse * (1.5 - 0.5 * inverse * root)
    y_k, z_k = root.clone(), torch.ones_like(s)
    for _ in range(3):
        y_k, z_k = y_k * (1.5 - 0.5 * z_k * y_k), z_k * (1.5 - 0.5 * z_k * y_k)
    expected = (u * (s * z_k).unsqueeze(1)) @ vt * norm.sqrt()
    torch.testing.assert_close(few(x, y).view(2, *SIDES), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("iterations", "smallest", "bound"), [(5, 0.2, 0.03), (12, 0.02, 0.001), (5, 0.02, 0.34)])
def test_the_iteration_has_converged_for_large_singular_values(iterations: int, smallest: float, bound: float) -> None:
    small = torch.linspace(smallest, 0.7, 60, dtype=torch.float64)
    matrices = torch.diag_embed(torch.stack([small, (1 - small.square()).sqrt()], -1))  # of norm 1
    roots = NewtonSchulzSqrt(iterations).rectangular(matrices)[:, 0, 0] / small.sqrt()
    assert (roots - 1).abs().max() < bound
    assert (roots - 1).abs().max() > bound / 2


@pytest.mark.parametrize("function", ["identity", "sqrt(exact)", "sqrt(5)", "power(0.3)"])
def test_exchanging_the_inputs_transposes_the_matrix(function: str) -> None:
    x, y = pair()
    one = polycov.create_pool(f"cross | {function} | flatten", SIDES)(x, y).view(2, *SIDES)
    other = polycov.create_pool(f"cross | {function} | flatten", SIDES[::-1])(y, x).view(2, *SIDES[::-1])
    torch.testing.assert_close(one, other.mT, rtol=1e-9, atol=1e-9)


def test_the_root_of_a_symmetric_cross_moment_is_the_root_of_the_moment() -> None:
    x = features(2, 20, 4)
    expected = polycov.create_pool("covariance | sqrt(exact) | flatten", 4)(x)
    torch.testing.assert_close(polycov.create_pool("cross-root", (4, 4))(x, x), expected, rtol=1e-9, atol=1e-9)


def test_compact_pooling_is_the_convolution_of_count_sketches_summed_over_locations() -> None:
    x, y = pair()
    pool = polycov.create_pool("cross | identity | tensor_sketch(16)", SIDES)
    state = pool.state_dict()
    sketches = []
    for side, z in enumerate((x, y)):
        sketch = np.zeros((*z.shape[:2], 16))
        for channel in range(z.shape[2]):
            bucket, sign = int(state["vector.hashes"][side, channel]), float(state["vector.signs"][side, channel])
            sketch[:, :, bucket] += sign * z[:, :, channel].numpy()
        sketches.append(np.fft.fft(sketch))
    expected = np.fft.ifft(sketches[0] * sketches[1]).real.sum(1)
    np.testing.assert_allclose(pool(x, y), expected, rtol=1e-10, atol=1e-10)
    vector = pool.vector
    factored = vector.factored(x, y)
    np.testing.assert_allclose(factored, expected, rtol=1e-10, atol=1e-10)


def test_random_maclaurin_is_a_product_of_projections_summed_over_locations() -> None:
    x, y = pair()
    pool = polycov.create_pool("cross | identity | random_maclaurin(16)", SIDES)
    weights = pool.state_dict()["vector.weights"].double()
    expected = ((x @ weights[0, :, :5].mT) * (y @ weights[1, :, :3].mT)).sum(1) / 4
    torch.testing.assert_close(pool(x, y), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pool.vector.factored(x, y), expected, rtol=1e-10, atol=1e-10)


def test_a_wide_count_sketch_preserves_inner_products_exactly() -> None:
    x, y = pair(batch=6)
    full = polycov.create_pool("cross | sqrt(5) | flatten", SIDES)(x, y)
    wide = polycov.create_pool("cross | sqrt(5) | count_sketch(15)", SIDES)(x, y)
    assert F.kernel_error(wide, full) < 1e-12
    assert polycov.create_pool("cross | sqrt(5) | count_sketch(4)", SIDES)(x, y).shape == (6, 4)


@pytest.mark.parametrize("vector", ["tensor_sketch(8)", "random_maclaurin(8)", "count_sketch(8)"])
def test_sketches_of_cross_moments_are_unbiased(vector: str) -> None:
    x, y = pair(batch=4)
    full = polycov.create_pool("cross | identity | flatten", SIDES)(x, y)
    specs = f"cross | identity | {vector}"
    kernels = [(z @ z.mT) for z in (polycov.create_pool(specs, SIDES, seed=seed)(x, y) for seed in range(400))]
    mean, spread = torch.stack(kernels).mean(0), torch.stack(kernels).std(0)
    assert ((mean - full @ full.mT).abs() <= 5 * spread / 20).all()


def test_one_vector_for_all_locations_is_the_same_vector_everywhere() -> None:
    x, y = pair()
    pool = polycov.create_pool("mcb", SIDES, dim=16)
    torch.testing.assert_close(pool(x, y[:, 0]), pool(x, y[:, :1].expand(-1, 12, -1)))
    torch.testing.assert_close(pool(x[:, 0], y), pool(x[:, :1].expand(-1, 12, -1), y))
    torch.testing.assert_close(pool(x[:, 0], y[:, 0]), pool(x[:, :1], y[:, :1]))
    weights = torch.rand(2, 12, dtype=torch.float64)
    torch.testing.assert_close(pool(x, y[:, 0], weights), pool(x, y[:, :1].expand(-1, 12, -1), weights))
    with pytest.raises(polycov.PolycovError, match="single vector for all locations is 0"):
        polycov.create_pool("cross-root", SIDES)(x, y[:, 0])


def test_heads_are_cross_covariances_of_learned_reductions() -> None:
    x = features(2, 12, 6)
    pool = polycov.create_pool("self_cross(3, heads=2) | sqrt(exact) | flatten", 6, seed=4).double()
    assert isinstance(pool, CrossPool)
    weight = pool.state_dict()["moment.weight"].view(2, 2, 3, 6)  # head, side, dim, channel
    centred = x - x.mean(1, keepdim=True)
    heads = []
    for left, right in weight:
        moment = ((centred @ left.mT).mT @ (centred @ right.mT) / 12).numpy()
        heads.append(power_of_singular_values(moment, 0.5).reshape(2, 9))
    np.testing.assert_allclose(pool(x).detach(), np.concatenate(heads, 1), rtol=1e-8, atol=1e-8)
    assert [tuple(p.shape) for p in pool.parameters()] == [(12, 6)]
    other = polycov.create_pool("self_cross(3, heads=2) | sqrt(exact) | flatten", 6, seed=5)
    assert not torch.equal(other.state_dict()["moment.weight"], pool.state_dict()["moment.weight"].float())


def test_what_is_not_defined_is_refused_in_a_sentence() -> None:
    for spec, message in (
        ("cross | log | flatten", r"'log\(exact\)' is not defined for a cross moment"),
        ("cross | sqrt(13) | flatten", r"up to 12"),
        ("cross | sqrt(5, gradient=lyapunov) | flatten", r"not defined for a cross moment"),
        ("cross | identity | triu", r"triu is the triangle of a symmetric matrix"),
        ("cross(mean) | identity | flatten", r"Unknown cross moment 'mean'"),
    ):
        with pytest.raises(polycov.PolycovError, match=message):
            polycov.create_pool(spec, SIDES)
    with pytest.raises(polycov.PolycovError, match=r"channels of two inputs, such as \(512, 300\)"):
        polycov.create_pool("mcb", 5)
    with pytest.raises(polycov.PolycovError, match="has one input"):
        polycov.create_pool("isqrt-cov", SIDES)
    with pytest.raises(polycov.PolycovError, match="route 'gram' exist"):
        polycov.create_pool("mcb", SIDES, route="gram")
    with pytest.raises(polycov.PolycovError, match="is a cross moment: use create_pool"):
        polycov.SecondOrderPool(5, "self_cross(2) | sqrt | flatten")


def test_a_missing_second_input_is_a_sentence() -> None:
    pool = polycov.create_pool("cross-bilinear", (4, 6))
    with pytest.raises(polycov.PolycovError, match=r"^Expected two inputs, pool\(x, y\), of 4 and 6 channels\.$"):
        pool(torch.rand(2, 4, 3, 3))
