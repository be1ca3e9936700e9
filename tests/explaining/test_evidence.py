import copy

import pytest
import torch

import samples
from polycov.errors import PolycovError
from polycov.explaining.evidence import collect_evidence
from polycov.explaining.second_order import SecondOrderEvidence
from polycov.pooling.functions.base import split_trace
from polycov.pooling.methods import is_first_order
from polycov.pooling.pool import Pool, SecondOrderPool
from polycov.pooling.symmetric import join
from samples import canonical

EXTRA = [
    "covariance | sqrt(1) | triu",
    "covariance | sqrt(20) | triu",
    "bilinear | sqrt(5, gradient=lyapunov) | flatten",
    "gaussian | log(exact) | count_sketch(20)",
    "gaussian | log(16) | tensor_sketch(20, learnable=True)",
    "covariance | power(0.3, exact) | random_maclaurin(20)",
    "covariance | power(0.7, 12) | triu",
    "bilinear | polynomial(0.5, 1, -0.25) | flatten | l2",
    "covariance | sqrt(5) | triu | signed_sqrt | l2 | project(5)",
    "gem(2) | signed_sqrt | l2",
    "covariance(shrinkage=oas) | sqrt(5) | triu",
    "covariance(shrinkage=ledoit_wolf) | identity | flatten",
    "covariance(shrinkage=0.1) | log(exact) | triu | l2",
]
UNEXPLAINED = samples.UNEXPLAINED
CROSS = [spec for spec in samples.SPECS if "self_cross" in spec]
SPECS = [spec for spec in canonical([*samples.SPECS, *EXTRA]) if spec not in UNEXPLAINED + CROSS]  # methods and stages


def make(spec: str, channels: int = 6) -> Pool:
    return samples.make(spec, channels, torch.float32).eval()


def features(dtype: torch.dtype = torch.float32, locations: int = 20) -> torch.Tensor:
    return torch.randn(3, locations, 6, generator=torch.Generator().manual_seed(0)).add(0.3).to(dtype)


# With more locations than channels, and with fewer.
@pytest.mark.parametrize(
    ("locations", "counting"), [(20, "all"), (20, "mask"), (4, "mask"), (20, "weights"), (4, "weights")]
)
@pytest.mark.parametrize("spec", SPECS)
def test_contributions_add_up_to_the_score(spec: str, counting: str, locations: int) -> None:
    pool, x = make(spec), features(locations=locations)
    mask = torch.ones(3, locations, dtype=torch.bool)
    mask[0, 3:] = False
    soft = mask * torch.rand(mask.shape, generator=torch.Generator().manual_seed(3))
    of_tokens = {"all": None, "mask": mask, "weights": soft}[counting]
    weights = torch.randn(3, pool.out_features, generator=torch.Generator().manual_seed(2))
    score = (weights * pool(x, of_tokens).detach()).sum(1)
    evidence = collect_evidence(pool, x, of_tokens)
    contributions, constant = evidence.locations(weights)
    size = contributions.abs().sum(1) + constant.abs()  # terms may cancel
    total = (contributions.sum(1) + constant).float()
    exact = (weights.double() * copy.deepcopy(pool).double()(x.double(), of_tokens).detach()).sum(1)
    assert bool(((total - exact).abs() <= 1e-4 * size + 1e-6).all())
    rounding = (score - exact).abs()  # the pool's own: large for 20 iterations on a singular matrix
    assert bool(((total - score).abs() <= 1e-4 * size + 1e-6 + rounding).all())
    pairs = evidence.pairs(weights)
    torch.testing.assert_close(pairs.sum(2), contributions, rtol=1e-3, atol=float(size.max()) * 1e-5)
    torch.testing.assert_close(pairs, pairs.mT, rtol=1e-3, atol=float(size.max()) * 1e-5)
    channels = evidence.channel_pairs(weights).sum((1, 2))
    inner_constant = evidence.pull_back(weights.to(contributions.dtype))[1]
    torch.testing.assert_close((channels + inner_constant).double(), exact, rtol=1e-3, atol=float(size.max()) * 1e-4)
    if counting != "all":
        assert bool((contributions[~mask] == 0).all())


def test_contributions_of_the_root_are_those_of_a_loop_over_the_definition() -> None:
    x = features(torch.float64)[:1]
    pool = make("covariance | sqrt(exact) | triu").double()
    weights = torch.randn(1, pool.out_features, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    evidence = collect_evidence(pool, x)
    assert isinstance(evidence, SecondOrderEvidence)
    rows = (x[0] - x[0].mean(0)) / 20**0.5
    values, vectors = torch.linalg.eigh(rows @ rows.mT)
    inverse = torch.where(values > 1e-12, values.clamp(min=1e-300) ** -0.5, 0.0)
    quotient = vectors @ torch.diag(inverse) @ vectors.mT
    matrix = torch.zeros(6, 6, dtype=torch.float64)
    i, j = torch.triu_indices(6, 6)
    matrix[i, j] = torch.where(i == j, weights[0], weights[0] / 2**0.5)
    matrix = torch.triu(matrix) + torch.triu(matrix, 1).mT
    pairs = evidence.pairs(weights)[0]
    for n in range(20):
        for m in range(20):
            expected = quotient[n, m] * (rows[n] @ matrix @ rows[m])
            assert float(pairs[n, m]) == pytest.approx(float(expected), rel=1e-6, abs=1e-10)


def test_a_linear_functional_of_another_image_explains_their_similarity() -> None:
    pool, x = make("isqrt-cov"), features()
    pooled = pool(x).detach()
    contributions, constant = collect_evidence(pool, x[:1]).locations(pooled[1:2])
    assert float(contributions.sum() + constant) == pytest.approx(float(pooled[0] @ pooled[1]), rel=1e-4)


def test_constant_maps_have_finite_contributions() -> None:
    pool = make("isqrt-cov")
    contributions, constant = collect_evidence(pool, torch.ones(2, 9, 6)).locations(torch.ones(2, pool.out_features))
    assert bool(contributions.isfinite().all())
    assert bool((contributions.sum(1) + constant).abs().max() < 1e-6)


@pytest.mark.parametrize("locations", [7, 20])  # just more than channels, and many more
@pytest.mark.parametrize("spec", [s for s in SPECS if not is_first_order(s) and "[" not in s and "shrinkage" not in s])
def test_pairs_on_the_smaller_side_are_those_of_the_gram_matrix(spec: str, locations: int) -> None:
    pool, x = make(spec).double(), features(torch.float64, locations)
    evidence = collect_evidence(pool, x)
    assert isinstance(pool, SecondOrderPool)
    assert isinstance(evidence, SecondOrderEvidence)
    rows, scale = pool.moment(x)
    function, (gram, trace, root) = pool.function.explained(), split_trace(rows @ rows.mT)
    direct = function.quotient(gram, root * scale, "eigenvalues" if function.products is None else "products")
    if evidence.gram_quotient is None:
        assert direct is None
        return
    assert direct is not None
    expected = direct * ((root * scale) ** (2 * function.degree) / trace)[:, None, None]
    found = join(evidence.gram_quotient())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("spec", ["isqrt-cov", "covariance | sqrt(12) | triu", "mpn-cov"])
def test_float32_is_enough_for_channels_of_very_different_size(spec: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(0, -4, 40)
    x = (torch.randn(2, 150, 40, generator=generator) @ torch.randn(40, 40, generator=generator) * sizes).relu()
    pool = samples.make(spec, 40, torch.float32).eval()
    weights = torch.randn(2, pool.out_features, generator=generator)
    exact = (weights.double() * copy.deepcopy(pool).double()(x.double())).sum(1)
    evidence = collect_evidence(pool, x)
    contributions, constant = evidence.locations(weights)
    size = float((contributions.abs().sum(1) + constant.abs()).max())
    torch.testing.assert_close((contributions.sum(1) + constant).double(), exact, rtol=0, atol=1e-4 * size)
    torch.testing.assert_close(evidence.pairs(weights).sum(2), contributions, rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("spec", UNEXPLAINED)
def test_a_feature_that_is_no_sum_over_locations_is_not_explained(spec: str) -> None:
    with pytest.raises(PolycovError, match=r"no exact explanation of .*not a sum over locations\. Use .* sqrt\(5\)"):
        collect_evidence(make(spec), features())


@pytest.mark.parametrize("spec", CROSS)
def test_cross_moments_are_not_explained(spec: str) -> None:
    with pytest.raises(PolycovError, match=r"no exact explanation of '.*pools two inputs"):
        collect_evidence(make(spec), features())


def test_the_matrix_is_not_computed_for_regions_alone() -> None:
    pool, x = make("covariance | sqrt(5) | count_sketch(12) | project(6)"), features()
    evidence = collect_evidence(pool, x)
    evidence.locations(torch.ones(3, pool.out_features))
    assert not {"matrix", "vector"} & set(vars(evidence))
