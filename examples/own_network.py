"""A pool in your own network: second order where the average was, trained on data in which only correlations differ.

    python examples/own_network.py

Two classes of textures have the same mean colour and the same variance in every channel; only which channels vary
together tells them apart. A network that averages cannot see that, the same network with a covariance can.
"""

import torch
from torch import Tensor, nn

import polycov


def textures(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 16, 16) and their classes: red goes with green, or against it."""
    noise = torch.randn(count, 3, 16, 16, generator=generator)
    labels = torch.arange(count) % 2
    sign = (2.0 * labels - 1).view(-1, 1, 1)
    noise[:, 1] = 0.8 * sign * noise[:, 0] + 0.6 * noise[:, 1]
    return noise, labels


def network(method: str) -> nn.Module:
    """A 1×1 convolution, a pool, and a classifier."""
    pool = polycov.create_pool(method, channels=8)
    return nn.Sequential(nn.Conv2d(3, 8, 1), pool, nn.Linear(pool.out_features, 2))


def accuracy(method: str, steps: int = 60) -> float:
    """Trains a network and returns its accuracy on new textures."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = network(method)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        images, labels = textures(32, generator)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, labels = textures(500, generator)
    return (model(images).argmax(1) == labels).float().mean().item()


def main() -> dict[str, float]:
    """Prints and returns the accuracy of each method."""
    scores = {method: accuracy(method) for method in ("average", "isqrt-cov")}
    for method, score in scores.items():
        print(f"{method:10} {100 * score:5.1f} %")
    return scores


if __name__ == "__main__":
    main()
