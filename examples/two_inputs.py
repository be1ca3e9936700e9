"""Two inputs: what goes with what? A cross moment of two streams, such as image and sound, or two networks.

    python examples/two_inputs.py

Each stream alone looks the same for both classes; only how they vary together tells them apart.
"""

import torch
from torch import Tensor, nn

import polycov


def streams(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Two sets of tokens, (count, 30, 4) and (count, 30, 5), and labels: the first channels agree, or oppose."""
    x, y = torch.randn(count, 30, 4, generator=generator), torch.randn(count, 30, 5, generator=generator)
    labels = torch.arange(count) % 2
    y[..., 0] = (2.0 * labels - 1).unsqueeze(1) * x[..., 0]
    return x, y, labels


def accuracy(features: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """That of the nearest class mean."""
    means = torch.stack([features[labels == label].mean(0) for label in (0, 1)])
    return (torch.cdist(test, means).argmin(1) == test_labels).float().mean().item()


@torch.no_grad()
def main() -> dict[str, float]:
    """Prints and returns the accuracy of each stream alone, and of both."""
    generator = torch.Generator().manual_seed(0)
    (x, y, labels), (x2, y2, labels2) = streams(200, generator), streams(200, generator)
    first, second = polycov.create_pool("isqrt-cov", 4), polycov.create_pool("isqrt-cov", 5)
    both: nn.Module = polycov.create_pool("cross-root", (4, 5))
    scores = {
        "first alone": accuracy(first(x), labels, first(x2), labels2),
        "second alone": accuracy(second(y), labels, second(y2), labels2),
        "both": accuracy(both(x, y), labels, both(x2, y2), labels2),
    }
    for name, score in scores.items():
        print(f"{name:13} {100 * score:5.1f} %")
    return scores


if __name__ == "__main__":
    main()
