import pytest
import torch
from torch import Tensor

import polycov
from polycov import SecondOrderPool, SideBySidePool, create_pool
from polycov.pooling.batches import Repeatable
from samples import features, relative

ROOT = "covariance | sqrt(5) | triu"


def test_the_feature_is_that_of_the_parts_one_after_another() -> None:
    x = features(3, 12)
    specs = ["gem(3) | l2", "covariance | sqrt(5) | count_sketch(7)", "bilinear | identity | triu | signed_sqrt"]
    pool = create_pool(f"[{', '.join(specs)}]", 4, seed=3).double()
    expected = torch.cat([create_pool(spec, 4, seed=3).double()(x) for spec in specs], 1)
    torch.testing.assert_close(pool(x), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(pool, SideBySidePool)
    assert repr(pool) == f"SideBySidePool(4, '[{', '.join(specs)}]', seed=3)"


def test_balance_gives_each_part_the_variance_asked_for() -> None:
    train = features(50, 12, seed=1)
    pool = create_pool(f"[average, {ROOT}, max] | balance(1, 2, 0.5)", 4).double().fit(train.split(7))
    parts = pool(train).split([4, 10, 4], 1)
    energies = [float((part - part.mean(0)).square().sum(1).mean()) for part in parts]
    assert energies == pytest.approx([1, 4, 0.25])
    plain = torch.cat([create_pool(spec, 4).double()(train) for spec in ("average", ROOT, "max")], 1)
    for factor in (pool(train) / plain).split([4, 10, 4], 1):  # one factor per part, the same for every sample
        torch.testing.assert_close(factor, factor[:1, :1].expand_as(factor), rtol=1e-9, atol=0)


def test_one_pass_fits_a_balance_and_the_projection_after_it() -> None:
    train = features(50, 12, seed=1)
    pool = create_pool(f"[average, {ROOT}] | balance | project(5)", 4).double()
    assert pool.passes == 1
    pool.fit(iter(train.split(7)))
    balanced = create_pool(f"[average, {ROOT}] | balance", 4).double().fit([train])(train)
    _, _, vectors = torch.linalg.svd(balanced - balanced.mean(0), full_matrices=False)
    expected = (balanced - balanced.mean(0)) @ vectors[:5].mT
    torch.testing.assert_close(pool(train).detach().abs(), expected.abs(), rtol=1e-8, atol=1e-8)


def test_parts_with_fits_of_their_own_take_a_pass_each() -> None:
    train = features(50, 12, seed=1)
    pool = create_pool(f"[average | project(2), {ROOT} | balance] | balance | l2 | project(5)", 4).double()
    assert (pool.passes, pool.fittable, pool.is_fitted) == (4, True, False)
    with pytest.raises(polycov.PolycovError, match="takes 4 passes over the batches, got an iterator"):
        pool.fit(iter([train]))
    pool.fit(Repeatable(lambda: iter(train.split(9))))
    assert pool.is_fitted
    inner = pool.aggregate(train, None)[0].detach()
    first = create_pool("average | project(2)", 4).double().fit([train])(train).detach()
    torch.testing.assert_close(inner[:, :2], first)
    assert float(inner[:, 2:].var(0, correction=0).sum()) == pytest.approx(1)


def test_a_constant_part_is_only_weighted() -> None:
    train = torch.rand(8, 1, 4, dtype=torch.float64)  # the covariance of one location is 0
    pool = create_pool(f"[average, {ROOT}] | balance(1, 3)", 4).double().fit([train])
    assert bool((pool(train)[:, 4:] == 0).all())
    assert pool.state_dict()["post.0.factors"][4:].tolist() == [3.0] * 10


def test_an_unfitted_balance_says_how_to_fit_it() -> None:
    pool = create_pool("mean-cov", 4)
    with pytest.raises(polycov.NotFittedError, match=r"The stage balance is not fitted. Call pool.fit\(batches\)"):
        pool(torch.rand(2, 5, 4))
    with pytest.raises(polycov.PolycovError, match="Cannot fit balance to 0 samples"):
        pool.fit([])


def test_routes_are_those_of_the_parts() -> None:
    pool = create_pool(f"[average, {ROOT}, gaussian | sqrt(5) | triu]", 16)
    assert pool.route_for(1000) == "covariance"
    assert create_pool("[average, max]", 16).route_for(4) is None
    forced = create_pool(f"[average, {ROOT}]", 16, route="gram")
    assert forced.route_for(1000) == "gram"
    assert repr(forced).endswith("seed=0, route='gram')")
    with pytest.raises(polycov.PolycovError, match="The route 'paper' does not exist"):
        create_pool(f"[average, {ROOT}]", 16, route="paper")
    assert pool.needs_eigenvalues is False
    assert create_pool("[average, covariance | sqrt(exact) | triu]", 4).needs_eigenvalues


def test_exact_functions_are_computed_in_float64_in_parts_too() -> None:
    def dtype(pool: polycov.Pool, x: Tensor) -> torch.dtype:
        return next(part.plan(x).dtype for part in pool.modules() if isinstance(part, SecondOrderPool))

    x, spec = features(2, 40, dtype=torch.float32), "[average, [max, covariance | sqrt(exact) | triu]]"
    exact, iterated = create_pool(f"{spec} | signed_sqrt", 4), create_pool(spec.replace("exact", "5"), 4)
    assert (dtype(exact, x), dtype(iterated, x)) == (torch.float64, torch.float32)
    assert relative(exact(x), exact.double()(x.double())) < 1e-6


@pytest.mark.parametrize("spec", ["average", ROOT])
def test_a_single_feature_is_no_list(spec: str) -> None:
    with pytest.raises(polycov.PolycovError, match="is a single feature: use create_pool"):
        SideBySidePool(4, spec)
