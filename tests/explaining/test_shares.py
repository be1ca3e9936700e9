import pytest
import torch

from polycov.explaining.evidence import collect_evidence
from polycov.explaining.regions import RegionGrid
from polycov.explaining.shares import region_shares
from polycov.pooling.methods import create_pool, list_methods, method_options
from polycov.pooling.pool import Pool

UNEXPLAINED = ["taylor-sqrt", "pade-sqrt", "deep-bdc", "isice", "log-cholesky", "moment-probing"]
UNEXPLAINED += ["class-token", "class-token-mean"]
SPECS = [
    *[name for name in list_methods() if name not in UNEXPLAINED],
    "gaussian | log(16) | tensor_sketch(20, learnable=True)",
    "covariance | sqrt(5) | triu | signed_sqrt | l2 | project(5)",
    "gem(2) | signed_sqrt | l2",
    "[max, [average, bilinear | sqrt(exact) | tensor_sketch(8)] | balance] | signed_sqrt",
    "[average | project(2), gaussian | sqrt(5) | triu | project(5)] | l2 | project(6)",
]


def make(spec: str) -> Pool:
    dim = 5 if spec.endswith("-fit") else 16
    pool = create_pool(spec, 6, dim=dim if "dim" in method_options(spec) else None)
    if pool.fittable:
        pool.fit([(torch.randn(12, 6, 5, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3)])
    return pool.eval()


def maps() -> torch.Tensor:
    return torch.randn(2, 6, 7, 5, generator=torch.Generator().manual_seed(0)).add(0.3)


@pytest.mark.parametrize("most", [3, 16])
@pytest.mark.parametrize("spec", SPECS)
def test_shares_add_up_to_the_feature(spec: str, most: int) -> None:
    pool, x = make(spec), maps()[:1]
    grid = RegionGrid(7, 5, most)
    shares = region_shares(pool, x, grid)
    assert shares.shape == (grid.count, pool.out_features)
    torch.testing.assert_close(shares.sum(0).float(), pool(x)[0].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["isqrt-cov", "ipccp-ts", "ipccp-rm", "improved-bilinear", "gem", "cbp-ts"])
def test_pairs_of_regions_are_the_contributions_to_the_inner_product(spec: str) -> None:
    pool, x = make(spec), maps()  # pools without a part that belongs to no region
    features = pool(x).detach()
    grid = RegionGrid(7, 5)
    one, other = (region_shares(pool, x[i : i + 1], grid).float() for i in range(2))
    pairs = one @ other.mT
    for i, sums in ((0, pairs.sum(1)), (1, pairs.sum(0))):
        contributions, constant = collect_evidence(pool, x[i : i + 1]).locations(features[1 - i : 2 - i])
        assert float(constant) == pytest.approx(0, abs=1e-5)
        torch.testing.assert_close(sums, contributions[0].float(), rtol=1e-3, atol=1e-4)
    assert float(pairs.sum()) == pytest.approx(float(features[0] @ features[1]), rel=1e-4)
