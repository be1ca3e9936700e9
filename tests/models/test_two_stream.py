from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polycov
from polycov.models.two_stream import TwoStreamModel


def network(channels: int, stride: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, channels, stride, stride=stride), nn.Tanh())


def images_of_two_classes(count: int = 32) -> tuple[Tensor, Tensor]:
    """Images with equal means, whose first and second colour agree in one class and are opposite in the other."""
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(count, 3, 16, 16, generator=generator), torch.arange(count) % 2
    x[:, 1] = x[:, 0] * (1 - 2 * labels)[:, None, None]
    return x, labels


@pytest.mark.parametrize("pool", ["cross-bilinear", "mcb", "cross-root"])
@pytest.mark.parametrize("streams", [1, 2])
def test_it_learns_what_only_the_correlation_of_two_streams_tells(pool: str, streams: int) -> None:
    x, labels = images_of_two_classes()
    options: dict[str, Any] = {"mcb": {"dim": 32}, "cross-root": {"iterations": 5}}.get(pool, {})
    second = network(6, 4, 1) if streams == 2 else None
    torch.manual_seed(2)
    model = TwoStreamModel(network(8, 4, 0), second, pool=pool, num_classes=2, channels=(6, 4), size=16, **options)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (model.eval()(x).argmax(1) == labels).float().mean() > 0.9


def test_each_stream_may_have_images_and_a_size_of_its_own() -> None:
    model = TwoStreamModel(
        network(8, 4, 0), network(6, 8, 1), num_classes=3, channels=(0, 5), reduction="linear", size=32
    ).eval()
    x, y = torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32)
    left, right = model.local_features(x, y)
    assert left.shape == (2, 8, 4, 4)
    assert right.shape == (2, 5, 4, 4)
    torch.testing.assert_close(left, nn.functional.avg_pool2d(model.first(x), 2))
    expected = model.classifier(polycov.create_pool("cross-bilinear", (8, 5))(left, right))
    torch.testing.assert_close(model(x, y), expected)
    assert not torch.allclose(model(x), model(x, y))


def test_tokens_are_reduced_like_maps() -> None:
    class Tokens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2).mT.contiguous()

    model = TwoStreamModel(Tokens(), num_classes=0, channels=(4, 2), size=8).eval()
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 8)


def test_wrong_streams_are_refused() -> None:
    with pytest.raises(polycov.PolycovError, match="One backbone needs two reductions"):
        TwoStreamModel(network(8, 4, 0), num_classes=2, channels=(0, 4), size=16)
    model = TwoStreamModel(network(8, 4, 0), num_classes=2, channels=(4, 4), size=16)
    with pytest.raises(polycov.PolycovError, match="takes one batch of images"):
        model(torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16))
    with pytest.raises(polycov.PolycovError, match="has one input"):
        TwoStreamModel(network(8, 4, 0), pool="isqrt-cov", num_classes=2, channels=(4, 4), size=16)
