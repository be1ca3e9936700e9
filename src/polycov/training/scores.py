"""Measuring a classifier: every picture once, whatever the number of processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polycov.data.images import Part
from polycov.training.batches import Feed


@dataclass(frozen=True)
class Scores:
    """What a classifier says of each picture of a part, in order.

    Attributes:
        top: the numbers of the most probable classes, best first, (n, k) with k at most 5.
        probability: of each of them, (n, k).
        loss: cross-entropy, (n,).
        labels: the right classes, (n,).
    """

    top: Tensor
    probability: Tensor
    loss: Tensor
    labels: Tensor

    @property
    def right(self) -> Tensor:
        """Whether each is right, (n,)."""
        return self.top[:, 0] == self.labels

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return float(self.right.double().mean())

    @property
    def top5(self) -> float:
        """The share whose right class is among the first five."""
        return float((self.top == self.labels[:, None]).any(1).double().mean())


def wilson(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson score interval of a share, at 95 % by default.

    Example:
        >>> low, high = wilson(90, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    share = right / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@torch.inference_mode()
def score(
    network: nn.Module,
    feed: Feed,
    part: Part,
    accelerator: Accelerator,
    *,
    batch: int = 32,
    mirror: bool = False,
    tick: Callable[[int], object] = lambda n: None,
) -> Scores:
    """Returns what a network says of all pictures of a part; processes share them, and all get the whole result.

    Args:
        network: from what the feed gives to logits; its mode is left as it was.
        feed: of inputs.
        part: of the data.
        accelerator: of the run.
        batch: inputs at a time.
        mirror: average over each picture and its mirror image.
        tick: called with the number of pictures done.
    """
    samples = feed.data[part]
    labels = torch.tensor(samples.labels, dtype=torch.long)
    mine = range(accelerator.process_index, len(samples), accelerator.num_processes)
    batches = [mine[i : i + batch] for i in range(0, len(mine), batch)]
    was_training = network.training
    network.eval()
    top = probability = loss = torch.empty(0)
    try:
        for x, y, numbers in feed.batches(part, batches):
            x = x.to(accelerator.device)
            with accelerator.autocast():
                logits = network(x)
                logits = torch.stack([logits, network(x.flip(-1))]) if mirror else logits[None]
            log_mean = logits.double().log_softmax(-1).logsumexp(0).cpu() - math.log(len(logits))
            if not len(top):
                k = min(5, log_mean.shape[1])
                top, probability = torch.zeros(len(samples), k, dtype=torch.long), torch.zeros(len(samples), k).double()
                loss = torch.zeros(len(samples)).double()
            best = log_mean.topk(top.shape[1])
            top[numbers], probability[numbers] = best.indices, best.values.exp()
            loss[numbers] = -log_mean.gather(1, y[:, None])[:, 0]
            tick(len(numbers))
    finally:
        network.train(was_training)
    if accelerator.num_processes > 1:  # each filled in its own, and left 0 elsewhere
        k = min(5, len(feed.data.classes))
        if not len(top):
            top, probability = torch.zeros(len(samples), k, dtype=torch.long), torch.zeros(len(samples), k).double()
            loss = torch.zeros(len(samples)).double()
        whole = torch.cat([top.double(), probability, loss[:, None]], 1).to(accelerator.device)
        whole = accelerator.reduce(whole, "sum").cpu()
        top, probability, loss = whole[:, :k].long(), whole[:, k : 2 * k], whole[:, 2 * k]
    return Scores(top, probability, loss, labels)
