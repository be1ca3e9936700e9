import math

import pytest
import torch
from sklearn.decomposition import PCA

from polycov.data.channel_basis import fit_basis
from polycov.errors import PolycovError
from polycov.pooling.methods import create_pool

TOKENS = torch.randn(12, 40, 9, generator=torch.Generator().manual_seed(0)) * torch.linspace(4, 0.1, 9) + 3.0


def test_the_basis_is_that_of_scikit_learn() -> None:
    basis = fit_basis(TOKENS.split(5), 4)
    pca = PCA(4).fit(TOKENS.reshape(-1, 9).double().numpy())
    torch.testing.assert_close(basis.mean, torch.tensor(pca.mean_).float())
    torch.testing.assert_close((basis.components @ torch.tensor(pca.components_).float().mT).abs(), torch.eye(4))
    assert math.isclose(basis.share, pca.explained_variance_ratio_.sum(), rel_tol=1e-6)


def test_few_local_features_have_the_same_share() -> None:
    rows = torch.randn(1, 6, 9, generator=torch.Generator().manual_seed(1))
    expected = PCA(3).fit(rows[0].double().numpy()).explained_variance_ratio_.sum()
    assert math.isclose(fit_basis([rows], 3).share, expected, rel_tol=1e-6)


def test_coordinates_are_those_of_scikit_learn_for_tokens_and_maps_alike() -> None:
    basis = fit_basis([TOKENS], 4)
    pca = PCA(4).fit(TOKENS.reshape(-1, 9).double().numpy())
    expected = torch.tensor(pca.transform(TOKENS[0].double().numpy())).float()
    assert torch.allclose(basis.encode(TOKENS)[0].abs(), expected.abs(), atol=1e-4)
    maps, coordinates = TOKENS.mT.unflatten(2, (8, 5)), basis.encode(TOKENS)
    torch.testing.assert_close(basis.encode(maps).flatten(2).mT, coordinates)
    torch.testing.assert_close(basis.decode(basis.encode(maps)).flatten(2).mT, basis.decode(coordinates))


def test_all_directions_lose_nothing_and_fewer_lose_the_rest_of_the_variance() -> None:
    torch.testing.assert_close((full := fit_basis([TOKENS], 9)).decode(full.encode(TOKENS)), TOKENS)
    basis = fit_basis([TOKENS], 4)
    lost = (basis.decode(basis.encode(TOKENS)) - TOKENS).square().sum()
    centred = TOKENS - TOKENS.mean((0, 1))
    assert math.isclose(1 - float(lost / centred.square().sum()), basis.share, rel_tol=1e-5)


def test_covariance_pools_see_no_difference_within_the_basis() -> None:
    """The full triangle of √C keeps inner products, so it does not see the rotation from channels to coordinates."""
    basis = fit_basis([TOKENS], 4)
    inside = basis.decode(basis.encode(TOKENS)).double()
    one = create_pool("isqrt-cov", 9)(inside)
    other = create_pool("isqrt-cov", 4)(basis.encode(TOKENS).double())
    torch.testing.assert_close(one @ one.mT, other @ other.mT, rtol=1e-5, atol=1e-5)


def test_the_digest_changes_with_the_values() -> None:
    assert fit_basis([TOKENS], 4).digest() == fit_basis([TOKENS], 4).digest() != fit_basis([TOKENS], 3).digest()


def test_more_components_than_channels_are_refused() -> None:
    with pytest.raises(PolycovError, match="Cannot fit 10 principal components"):
        fit_basis([TOKENS], 10)


def test_stages_side_by_side_have_components_of_their_own() -> None:
    basis = fit_basis(((x[..., :3], x[..., 3:]) for x in TOKENS.split(5)), 4)
    alone = [fit_basis([part], count) for part, count in zip(TOKENS.split([3, 6], -1), (3, 4), strict=True)]
    x = TOKENS[:2]
    expected = torch.cat([one.encode(part) for one, part in zip(alone, x.split([3, 6], -1), strict=True)], -1)
    torch.testing.assert_close(basis.encode(x), expected)
    totals = [float(part.double().reshape(-1, part.shape[-1]).var(0).sum()) for part in TOKENS.split([3, 6], -1)]
    kept = sum(one.share * total for one, total in zip(alone, totals, strict=True))
    assert math.isclose(basis.share, kept / sum(totals), rel_tol=1e-6)
