import numpy as np
import torch

import polycov
from polycov.pooling.dropcov import DropCov, drop_rate
from samples import features


def test_the_rate_is_that_of_the_paper() -> None:
    x, importance = features(3, 20, 64), torch.rand(3, 64, dtype=torch.float64).softmax(-1)
    rates = []
    for sample, weight in zip(x.numpy(), importance.numpy(), strict=True):
        sums = np.cov(sample.T, bias=True).sum(1)
        rates.append(weight @ sums / np.linalg.norm(weight) / np.linalg.norm(sums))
    expected = np.clip(1 - 10 / np.log2(64) * np.mean(rates), 0, 1)
    rate = drop_rate(polycov.functional.covariance(x), importance)
    np.testing.assert_allclose(rate, expected, rtol=1e-9)


def test_evaluation_is_the_covariance() -> None:
    x = features(2, 20)
    pool = polycov.create_pool("dropcov", 4).double().eval()
    assert torch.equal(pool(x), polycov.create_pool("covariance | identity | triu", 4).double()(x))


def test_training_drops_whole_channels_of_each_sample_at_the_rate() -> None:
    torch.manual_seed(0)
    x = features(8, 50, 64)
    moment = DropCov(64).double()
    plain, _ = moment.eval()(x)
    moment.train()
    importance = moment.importance(x).detach()
    rate = float(drop_rate(plain, importance))
    assert 0.05 < rate < 0.95
    ratios = torch.stack([(moment(x)[0].detach() / plain).mean(1) for _ in range(200)])
    dropped = ratios == 0
    assert abs(float(dropped.double().mean()) - rate) < 0.02
    assert not torch.equal(dropped[0, 0], dropped[0, 1])
    torch.testing.assert_close(ratios[~dropped], ((1 + importance) / (1 - rate)).expand_as(ratios)[~dropped])


def test_the_filter_learns_in_training_only() -> None:
    torch.manual_seed(0)
    x = features(8, 50, 64)
    pool = polycov.create_pool("dropcov", 64).double()
    pool(x).square().sum().backward()
    (parameter,) = pool.parameters()
    assert parameter.grad is not None
    assert parameter.grad.abs().sum() > 0
    assert not pool.eval()(x).requires_grad


def test_everything_is_kept_where_everything_would_be_dropped() -> None:
    x = torch.zeros(2, 5, 4)
    x[:, :2] = torch.tensor([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]])  # the row sums of the covariance are 0
    pool = polycov.create_pool("dropcov | identity | flatten", 4)
    assert bool((pool(x) != 0).all())


def test_the_rate_does_not_depend_on_the_scale() -> None:
    x = torch.rand(8, 49, 64, generator=torch.Generator().manual_seed(0))
    moment = DropCov(64)
    kept = []
    for scale in (1.0, 1e-5, 1e-6, 1e-8):
        torch.manual_seed(0)
        kept.append(float((moment(x * scale)[0] != 0).double().mean()))
    assert max(kept) - min(kept) < 1e-3
