"""The paper's proposition: a sketch keeps inner products on average, and its variance falls as 1/D."""

import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import PolynomialCountSketch

import polycov
from polycov import functional as F
from polycov.pooling.vectors.buckets import bucket_table
from samples import features

SKETCHES = ["tensor_sketch", "random_maclaurin", "count_sketch"]
CHANNELS = 5


def reference(x: torch.Tensor, function: str) -> np.ndarray:
    """q(C) in float64 by numpy: eigenvalues for the iteration, powers for the polynomial."""
    c = np.cov(x.numpy().T, bias=True)
    if function == "sqrt(5)":
        values, vectors = np.linalg.eigh(c)
        t = values.sum()
        y, z = values / t, np.ones_like(values)
        for _ in range(5):
            step = 0.5 * (3 - z * y)
            y, z = y * step, step * z
        return np.sqrt(t) * (vectors * y) @ vectors.T
    return 0.5 * np.eye(len(c)) + c - 0.25 * c @ c


def kernel(function: str, vector: str, dim: int, seeds: int) -> tuple[np.ndarray, float]:
    """⟨φ(X), φ(Y)⟩ over many seeds, and the exact ⟨q(C_x), q(C_y)⟩."""
    x, y = features(1, 20, CHANNELS, seed=1), features(1, 20, CHANNELS, seed=2)
    samples = []
    for seed in range(seeds):
        pool = polycov.SecondOrderPool(CHANNELS, f"covariance | {function} | {vector}({dim})", seed=seed).double()
        a, b = pool(torch.cat([x, y]))
        samples.append(float(a @ b))
    return np.array(samples), float((reference(x[0], function) * reference(y[0], function)).sum())


@pytest.mark.parametrize("function", ["sqrt(5)", "polynomial(0.5, 1, -0.25)"])
@pytest.mark.parametrize("vector", SKETCHES)
def test_sketch_is_unbiased(function: str, vector: str) -> None:
    samples, exact = kernel(function, vector, 8, 1500)
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    assert error > 0
    assert abs(samples.mean() - exact) < 4 * error


@pytest.mark.parametrize("vector", ["tensor_sketch", "random_maclaurin"])
def test_variance_falls_as_one_over_dim(vector: str) -> None:
    narrow = kernel("sqrt(5)", vector, 16, 1200)[0].var()
    wide = kernel("sqrt(5)", vector, 64, 1200)[0].var()
    assert 3 < narrow / wide < 5.3


def test_variance_of_the_count_sketch_falls_faster_and_is_lower() -> None:
    # Two of m entries share one of D equal buckets with probability (m/D − 1)/(m − 1), not 1/D: for m = 15 and D = 8
    # the variance is about 1 − D/m = 0.47 of the tensor sketch's.
    count = kernel("sqrt(5)", "count_sketch", 8, 1200)[0].var()
    tensor = kernel("sqrt(5)", "tensor_sketch", 8, 1200)[0].var()
    assert 0.3 < count / tensor < 0.65


@pytest.mark.parametrize("dim", [15, 16, 40])
def test_count_sketch_is_exact_from_the_size_of_the_triangle(dim: int) -> None:
    samples, exact = kernel("sqrt(5)", "count_sketch", dim, 5)
    np.testing.assert_allclose(samples, exact, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 7, 32])
def test_cbp_is_scikit_learns_sketch_summed_over_locations(dim: int) -> None:
    theirs = PolynomialCountSketch(degree=2, n_components=dim, random_state=0)
    x = features(3, 11, CHANNELS)
    theirs.fit(x[0].numpy())
    pool = polycov.SecondOrderPool(CHANNELS, f"bilinear | identity | tensor_sketch({dim})").double()
    state = pool.state_dict()
    state["vector.hashes"] = torch.from_numpy(theirs.indexHash_.astype(np.int64))
    state["vector.signs"] = torch.from_numpy(theirs.bitHash_.astype(np.float64))
    pool.load_state_dict(state)
    expected = np.stack([theirs.transform(sample.numpy()).sum(0) for sample in x])
    np.testing.assert_allclose(pool(x).numpy(), expected, rtol=1e-10, atol=1e-10)


def loop(vector: torch.nn.Module, q: np.ndarray) -> np.ndarray:
    """Each sketch by its definition, entry by entry."""
    c = len(q)
    out = np.zeros(vector.out_features)
    if hasattr(vector, "hashes"):
        (h1, h2), (s1, s2) = vector.hashes.numpy(), vector.signs.numpy()
        for a in range(c):
            for b in range(c):
                out[(h1[a] + h2[b]) % len(out)] += s1[a] * s2[b] * q[a, b]
    elif hasattr(vector, "order"):
        triangle = [q[a, b] * (1 if a == b else np.sqrt(2)) for a in range(c) for b in range(a, c)]
        for i, entry in enumerate(vector.order.tolist()):
            out[i % len(out)] += float(vector.signs[entry]) * triangle[entry]
    else:
        w1, w2 = vector.weights.numpy()
        for j in range(len(out)):
            out[j] = w1[j] @ q @ w2[j] / np.sqrt(len(out))
    return out


@pytest.mark.parametrize("dim", [1, 6, 600])
@pytest.mark.parametrize("vector", SKETCHES)
def test_sketch_is_its_definition(vector: str, dim: int) -> None:
    module = polycov.SecondOrderPool(CHANNELS, f"covariance | identity | {vector}({dim})", seed=3).double().vector
    rows = features(2, 9, CHANNELS)
    q = rows.mT @ rows
    expected = np.stack([loop(module, matrix) for matrix in q.numpy()])
    np.testing.assert_allclose(module(q).numpy(), expected, rtol=1e-11, atol=1e-11)


def test_functions_are_their_modules() -> None:
    rows = features(2, 9, CHANNELS)
    q = rows.mT @ rows
    ts, rm, cs = (
        polycov.SecondOrderPool(CHANNELS, f"covariance | identity | {v}(8)").double().vector for v in SKETCHES
    )
    torch.testing.assert_close(F.tensor_sketch(q, ts.hashes, ts.signs, 8), ts(q))
    torch.testing.assert_close(F.random_maclaurin(q, rm.weights), rm(q))
    torch.testing.assert_close(F.count_sketch(q, cs.order, cs.signs, 8), cs(q))


def test_triu_keeps_inner_products() -> None:
    rows = features(2, 9, CHANNELS)
    a, b = rows.mT @ rows
    va, vb = F.triu(torch.stack([a, b]))
    torch.testing.assert_close(va @ vb, (a * b).sum())
    pool = polycov.SecondOrderPool(CHANNELS, "bilinear | identity | triu").double()
    torch.testing.assert_close(pool(rows), F.triu(torch.stack([a, b])))


def test_buckets_of_a_count_sketch_are_equal() -> None:
    vector = polycov.SecondOrderPool(16, "covariance | identity | count_sketch(17)").vector
    assert torch.bincount(vector.bucket)[:17].tolist() == [8] * 17  # 136 entries
    assert vector.table.shape == (8, 17)


def test_different_seeds_differ() -> None:
    for vector in SKETCHES:
        x = features(1, 9, CHANNELS)
        a, b = (
            polycov.SecondOrderPool(CHANNELS, f"covariance | sqrt(5) | {vector}(8)", seed=s).double() for s in (0, 1)
        )
        assert not torch.allclose(a(x), b(x))


def test_half_precision_buffers_keep_the_weights_exact() -> None:
    x = features(1, 9, CHANNELS, dtype=torch.float32)
    for vector in ("triu", "count_sketch(8)", "tensor_sketch(8)"):
        pool = polycov.SecondOrderPool(CHANNELS, f"covariance | sqrt(5) | {vector}")
        expected = pool(x)
        assert torch.equal(pool.bfloat16()(x), expected)


@pytest.mark.parametrize("name", ["ipccp-ts", "ipccp-cs", "ipccp-rm"])
def test_a_state_of_another_dimension_is_refused(name: str) -> None:
    state = polycov.create_pool(name, CHANNELS, dim=64).state_dict()
    with pytest.raises(RuntimeError, match=r"64 dimensions, this one has 8|size mismatch"):
        polycov.create_pool(name, CHANNELS, dim=8).load_state_dict(state)


def test_bucket_sum_is_the_same_by_table_and_by_scatter() -> None:
    generator = torch.Generator().manual_seed(0)
    x, bucket = torch.randn(3, 500, generator=generator), torch.randint(81, (500,), generator=generator)  # 80 is none
    table = bucket_table(bucket, 80)
    assert len(table) > 1
    by_scatter = F.bucket_sum(x, bucket, 80, table)
    padded = torch.nn.functional.pad(x, (0, 1))
    torch.testing.assert_close(by_scatter, padded[:, table].sum(1))
    expected = np.stack([np.bincount(bucket.numpy(), row, 81)[:80] for row in x.double().numpy()])
    np.testing.assert_allclose(by_scatter.numpy(), expected, rtol=1e-5, atol=1e-5)
