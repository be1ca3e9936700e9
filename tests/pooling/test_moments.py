from collections.abc import Callable

import numpy as np
import pytest
import torch

import polycov
from polycov import functional as F
from polycov.pooling.registry import Stage
from samples import features


def second_moment(rows: torch.Tensor) -> torch.Tensor:
    return rows.mT @ rows


def test_bilinear_is_the_sum_of_outer_products() -> None:
    x = features(2, 7, 3)
    expected = np.stack([sum(np.outer(t, t) for t in sample) for sample in x.numpy()])
    torch.testing.assert_close(second_moment(F.bilinear(x)), torch.from_numpy(expected))


def test_covariance_agrees_with_numpy() -> None:
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
def test_rows_stay_close_to_one_at_any_scale(stage: Stage) -> None:
    x = features(4, 7, 3, dtype=torch.float32) * torch.tensor([1e-30, 1e-10, 1.0, 1e30])[:, None, None]
    module = stage.build(channels=3)
    rows, scale = module(x)
    assert (rows.abs().amax((1, 2)) < 4).all()
    assert (rows.abs().amax((1, 2)) > 0.1).all()
    torch.testing.assert_close(rows * scale[:, None, None], getattr(F, stage.name)(x))


def test_second_moment_is_twice_differentiable() -> None:
    x = features(2, 3, 2).requires_grad_()
    torch.testing.assert_close(F.second_moment(x), second_moment(x))
    assert torch.autograd.gradcheck(F.second_moment, x)
    assert torch.autograd.gradgradcheck(F.second_moment, x)


@pytest.mark.parametrize("function", [F.bilinear, F.covariance, F.gaussian])
def test_a_mask_hides_tokens(function: Callable[..., torch.Tensor]) -> None:
    x = features(2, 7, 3)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    x[~mask] = torch.nan
    moments = second_moment(function(x, mask))
    torch.testing.assert_close(moments[:1], second_moment(function(x[:1, :4])))
    torch.testing.assert_close(moments[1:], second_moment(function(x[1:, 2:])))
