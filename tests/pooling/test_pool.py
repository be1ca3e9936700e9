import pytest
import torch

import polycov
from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
from polycov.pooling.plan import cheapest, cost
from samples import features


@pytest.mark.parametrize(("locations", "channels"), [(49, 512), (196, 768), (784, 256), (3136, 64), (256, 256)])
def test_auto_takes_the_side_with_fewer_products(locations: int, channels: int) -> None:
    function = NewtonSchulzSqrt(5)
    best = min(("covariance", "gram"), key=lambda route: cost(route, function, locations, channels))
    assert cheapest(function, locations, channels) == best == ("gram" if locations < channels else "covariance")


def test_auto_is_the_route_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = polycov.create_pool("isqrt-cov", 16)
    seen = []
    monkeypatch.setattr(NewtonSchulzSqrt, "quotient", lambda self, s, r: seen.append(tuple(s.shape[1:])) or s)
    pool(torch.rand(1, 16, 2, 2))
    assert seen == [(4, 4)]
    pool(torch.rand(1, 16, 8, 8))
    assert seen == [(4, 4)]


def test_non_finite_check_can_be_switched_off() -> None:
    x = torch.full((1, 5, 4), torch.inf)
    assert not polycov.create_pool("isqrt-cov", 4, check_finite=False)(x).isfinite().all()


def test_learnable_sketches_have_parameters_and_fixed_ones_none() -> None:
    for vector in ("tensor_sketch", "random_maclaurin"):
        fixed = polycov.SecondOrderPool(4, f"covariance | sqrt(5) | {vector}(8)")
        learnable = polycov.SecondOrderPool(4, f"covariance | sqrt(5) | {vector}(8, learnable=True)")
        assert not list(fixed.parameters())
        assert len(list(learnable.parameters())) == 1
        x = features(2, 9, 4, dtype=torch.float32)
        torch.testing.assert_close(learnable(x), fixed(x))
        learnable(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learnable.parameters())


def test_a_pool_deep_copies_and_trains_in_a_network() -> None:
    import copy

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), polycov.create_pool("ipccp-cs", 8, dim=16), torch.nn.Linear(16, 2)
    )
    net = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, 3, 8, 8, generator=generator)
    x[8:, 1] = x[8:, 0]  # the classes differ in nothing but a correlation
    y = torch.arange(16) // 8
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
