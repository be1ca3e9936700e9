import numpy as np
import torch

from polycov import functional as F
from samples import features


def test_first_order_pooling_agrees_with_numpy() -> None:
    x = features(2, 7, 3).abs()
    np.testing.assert_allclose(F.average(x), x.numpy().mean(1))
    np.testing.assert_allclose(F.maximum(x), x.numpy().max(1))
    np.testing.assert_allclose(F.gem(x, 3.0), (x.numpy() ** 3).mean(1) ** (1 / 3))


def test_gem_ranges_from_the_mean_to_the_maximum() -> None:
    x = features(2, 7, 3).abs()
    torch.testing.assert_close(F.gem(x, 1.0), F.average(x))
    torch.testing.assert_close(F.gem(x, 500.0), F.maximum(x), rtol=1e-2, atol=0)


def test_gem_replaces_negative_features_by_its_floor() -> None:
    x = torch.tensor([[[-5.0], [-1.0]]])
    torch.testing.assert_close(F.gem(x), torch.tensor([[1e-6]]))


def test_weighted_first_order_pooling_agrees_with_numpy() -> None:
    x, w = features(2, 7, 3).abs(), torch.rand(2, 7, dtype=torch.float64)
    w[0, 2] = 0
    mean = np.stack([np.average(t, 0, a) for t, a in zip(x.numpy(), w.numpy(), strict=True)])
    cubes = np.stack([np.average(t**3, 0, a) for t, a in zip(x.numpy(), w.numpy(), strict=True)])
    np.testing.assert_allclose(F.average(x, w), mean)
    np.testing.assert_allclose(F.gem(x, 3.0, w), cubes ** (1 / 3))
    assert torch.equal(F.maximum(x, w), F.maximum(x, w > 0))


def test_gem_is_finite_if_hidden_tokens_are_far_larger_than_those_that_count() -> None:
    x, w = torch.tensor([[[1e-3], [2e-3], [1e12]]]), torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    torch.testing.assert_close(F.gem(x, 3.0, w), F.gem(x[:, :2], 3.0))
    assert torch.autograd.grad(F.gem(x, 3.0, w).sum(), w)[0].isfinite().all()
