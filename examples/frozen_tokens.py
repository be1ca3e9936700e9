"""Frozen tokens and a linear probe: any model's tokens, a mask, one vector per sample, a ridge classifier.

    python examples/frozen_tokens.py

Replace `tokens_of_my_model` by yours: patches of a vision transformer, or words of a text. Samples have different
numbers of tokens, so they are padded, and a mask says which exist.
"""

import torch
from torch import Tensor, nn

import polycov

CLASSES, CHANNELS = 6, 48


def tokens_of_my_model(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (count, 40, CHANNELS), a mask (count, 40), and labels. Here a stand-in: classes differ in covariance."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(CLASSES, CHANNELS, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % CLASSES
    tokens = torch.einsum("bck,bnk->bnc", frames[labels], torch.randn(count, 40, 12, generator=generator))
    tokens += torch.randn(count, 40, CHANNELS, generator=generator)
    lengths = torch.randint(20, 41, (count,), generator=generator)
    return tokens, torch.arange(40) < lengths.unsqueeze(1), labels


def ridge(features: Tensor, labels: Tensor, strength: float = 1e-2) -> nn.Linear:
    """A linear classifier in closed form, on features of training samples."""
    mean = features.mean(0)
    rows = (features - mean).double()
    targets = nn.functional.one_hot(labels).double() - 1 / CLASSES
    gram = rows @ rows.mT
    damped = gram + strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = rows.mT @ torch.cholesky_solve(targets, torch.linalg.cholesky(damped))
    layer = nn.Linear(features.shape[1], CLASSES)
    layer.load_state_dict({"weight": weights.mT.float(), "bias": -(mean.double() @ weights).float()})
    return layer


@torch.no_grad()
def main() -> dict[str, float]:
    """Prints and returns the test accuracy of each method."""
    (train, mask, labels), (test, test_mask, test_labels) = (tokens_of_my_model(n, s) for n, s in ((300, 1), (300, 2)))
    scores = {}
    for method, dim in (("average", None), ("isqrt-cov", None), ("mean-cov-fit", 64)):
        pool = polycov.create_pool(method, CHANNELS, dim=dim)
        if pool.fittable:
            pool.fit([(train, mask, labels)])  # batches, as a DataLoader gives them
        probe = ridge(pool(train, mask), labels)
        scores[method] = (probe(pool(test, test_mask)).argmax(1) == test_labels).float().mean().item()
        print(f"{method:13} {pool.out_features:5} numbers  {100 * scores[method]:5.1f} %")
    return scores


if __name__ == "__main__":
    main()
