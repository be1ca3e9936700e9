import numpy as np
import pytest
import torch

import polycov
from polycov import functional as F
from samples import features


def second_moment(rows: torch.Tensor) -> torch.Tensor:
    return rows.mT @ rows


def test_bilinear_is_the_sum_of_outer_products() -> None:
    x = features(2, 7, 3)
    expected = np.stack([sum(np.outer(t, t) for t in sample) for sample in x.numpy()])
    torch.testing.assert_close(second_moment(F.bilinear(x)), torch.from_numpy(expected))


def test_covariance_is_numpys() -> None:
    x = features(2, 7, 3)
    expected = np.stack([np.cov(sample.T, bias=True) for sample in x.numpy()])
    torch.testing.assert_close(second_moment(F.covariance(x)), torch.from_numpy(expected))


def test_gaussian_is_the_embedding_of_mean_and_covariance() -> None:
    x = features(1, 7, 3)[0].numpy()
    mean, cov = x.mean(0), np.cov(x.T, bias=True)
    expected = np.block([[cov + np.outer(mean, mean), mean[:, None]], [mean[None], np.ones((1, 1))]])
    rows = F.gaussian(torch.from_numpy(x).unsqueeze(0))
    torch.testing.assert_close(second_moment(rows)[0], torch.from_numpy(expected))


@pytest.mark.parametrize("stage", polycov.list_stages("moment"), ids=lambda stage: stage.name)
def test_rows_stay_near_one_at_any_scale(stage) -> None:
    x = features(4, 7, 3, dtype=torch.float32) * torch.tensor([1e-30, 1e-10, 1.0, 1e30])[:, None, None]
    module = stage.build(channels=3)
    rows, scale = module(x)
    assert (rows.abs().amax((1, 2)) < 4).all()
    assert (rows.abs().amax((1, 2)) > 0.1).all()
    torch.testing.assert_close(rows * scale[:, None, None], getattr(F, stage.name)(x))


def test_second_moment_differentiates_twice() -> None:
    x = features(2, 3, 2).requires_grad_()
    torch.testing.assert_close(F.second_moment(x), second_moment(x))
    assert torch.autograd.gradcheck(F.second_moment, x)
    assert torch.autograd.gradgradcheck(F.second_moment, x)


def test_a_mask_over_the_map_is_the_mask_over_its_locations() -> None:
    x = torch.rand(2, 3, 4, 5)
    mask = torch.rand(2, 4, 5) > 0.3
    tokens, flat = F.as_tokens(x, mask)
    assert flat is not None
    assert torch.equal(flat, mask.flatten(1))
    assert torch.equal(tokens[0, 7], x[0, :, 1, 2])


@pytest.mark.parametrize("function", [F.bilinear, F.covariance, F.gaussian])
def test_a_mask_hides_tokens_from_the_function_itself(function) -> None:
    x = features(2, 7, 3)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    x[~mask] = torch.nan
    moments = second_moment(function(x, mask))
    torch.testing.assert_close(moments[:1], second_moment(function(x[:1, :4])))
    torch.testing.assert_close(moments[1:], second_moment(function(x[1:, 2:])))


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        ([[1.0]], None, "as a torch.Tensor, got list"),
        (torch.rand(1, 2, 3, 4), torch.ones(1, 4, 3, dtype=torch.bool), r"\(1, 12\) or \(1, 3, 4\)"),
        (torch.rand(1, 2, 3, 4), [True] * 12, "got list"),
        (torch.rand(1, 2, 3).to(torch.float8_e4m3fn), None, "got torch.float8_e4m3fn"),
        (torch.rand(1, 2, 3).to(torch.complex64), None, "got torch.complex64"),
    ],
)
def test_wrong_features_and_masks(x, mask, message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        F.as_tokens(x, mask)
