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
