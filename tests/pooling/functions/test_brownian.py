import math

import numpy as np
import torch

import polycov
from polycov import functional as F
from samples import features


def paper(x: np.ndarray, t: float, epsilon: float) -> np.ndarray:
    """The matrix of DeepBDC, by loops over its definition; x is (N, C)."""
    channels = x.shape[1]
    distance = np.empty((channels, channels))
    for i in range(channels):
        for j in range(channels):
            distance[i, j] = math.sqrt(math.exp(t) * ((x[:, i] - x[:, j]) ** 2).sum() + epsilon)
    result = np.empty_like(distance)
    for i in range(channels):
        for j in range(channels):
            result[i, j] = distance[i, j] - distance[i].mean() - distance[:, j].mean() + distance.mean()
    return result


def test_the_feature_is_that_of_the_paper() -> None:
    x = features(2, 9, 5)
    y = polycov.create_pool("bilinear | brownian(-2) | flatten", 5).double()(x)
    for sample, vector in zip(x.numpy(), y.detach().numpy(), strict=True):
        epsilon = math.exp(-2) * 1e-5 * (sample**2).sum() / 5
        np.testing.assert_allclose(vector.reshape(5, 5), paper(sample, -2.0, epsilon), rtol=1e-9, atol=1e-12)


def test_t_is_learnable_and_only_scales_the_feature() -> None:
    pool, x = polycov.create_pool("deep-bdc", 4).double(), features()
    before = pool(x)
    with torch.no_grad():
        next(iter(pool.parameters())).add_(2.0)
    torch.testing.assert_close(pool(x), math.e * before)


def test_shifting_all_channels_alike_at_a_location_changes_nothing() -> None:
    pool, x = polycov.create_pool("bilinear | brownian(0) | flatten", 4).double(), features(1, 9)
    distances = F.channel_distances(x.mT @ x, 0.0)
    shifted = x + features(1, 9, 1, seed=5)
    torch.testing.assert_close(F.channel_distances(shifted.mT @ shifted, 0.0), distances, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pool(x).reshape(4, 4).sum(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_feature_scales_with_the_features() -> None:
    pool, x = polycov.create_pool("deep-bdc", 4).double(), features()
    torch.testing.assert_close(pool(-3 * x), 3 * pool(x))
