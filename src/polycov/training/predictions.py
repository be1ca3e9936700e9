"""What a classifier predicts for every image of a split, for any number of processes."""

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polycov.data.images import Split
from polycov.models.modes import evaluation_mode
from polycov.progress import Task
from polycov.training.batches import BatchSource


@dataclass(frozen=True)
class Predictions:
    """Predictions for the images of a split, in order.

    Attributes:
        top: indices of the most probable classes, best first, (n, k) with k at most 5.
        probability: probability of each of them, (n, k).
        loss: cross-entropy, (n,).
        labels: the true classes, (n,).
    """

    top: Tensor
    probability: Tensor
    loss: Tensor
    labels: Tensor

    @property
    def correct(self) -> Tensor:
        """Whether each prediction is correct, (n,)."""
        return self.top[:, 0] == self.labels

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(self.correct.double().mean())

    @property
    def top5(self) -> float:
        """The share of images whose true class is among the five most probable."""
        return float((self.top == self.labels[:, None]).any(1).double().mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return wilson_interval(int(self.correct.sum()), len(self.correct))


def wilson_interval(successes: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson score interval of a share, at 95 % by default; three lines, so no dependency on SciPy.

    Example:
        >>> low, high = wilson_interval(90, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    share = successes / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@torch.inference_mode()
def predict_split(
    network: nn.Module,
    source: BatchSource,
    split: Split,
    accelerator: Accelerator,
    *,
    batch_size: int = 32,
    mirror: bool = False,
    task: Task | None = None,
) -> Predictions:
    """Returns the predictions of a network for all images of a split; processes share them, and all get the result.

    Args:
        network: from what the source gives to logits; its mode is restored.
        source: where inputs come from.
        split: split of the data.
        accelerator: accelerator of the processes.
        batch_size: inputs per batch.
        mirror: average over each image and its mirror image.
        task: advanced by the number of images done.
    """
    samples = source.data[split]
    k = min(5, len(source.data.classes))
    top, probability = torch.zeros(len(samples), k, dtype=torch.long), torch.zeros(len(samples), k).double()
    loss = torch.zeros(len(samples)).double()
    mine = range(accelerator.process_index, len(samples), accelerator.num_processes)
    batches = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    with evaluation_mode(network):
        for x, y, indices in source.batches(split, batches):
            x = x.to(accelerator.device)
            with accelerator.autocast():
                logits = network(x)
                logits = torch.stack([logits, network(x.flip(-1))]) if mirror else logits[None]
            log_mean = logits.double().log_softmax(-1).logsumexp(0).cpu() - math.log(len(logits))
            best = log_mean.topk(k)
            top[indices], probability[indices] = best.indices, best.values.exp()
            loss[indices] = -log_mean.gather(1, y[:, None])[:, 0]
            if task is not None:
                task.advance(len(indices))
    if accelerator.num_processes > 1:  # each filled in its own share, and left 0 elsewhere
        shares = torch.cat([top.double(), probability, loss[:, None]], 1).to(accelerator.device)
        total = accelerator.reduce(shares, "sum").cpu()
        top, probability, loss = total[:, :k].long(), total[:, k : 2 * k], total[:, 2 * k]
    return Predictions(top, probability, loss, torch.tensor(samples.labels, dtype=torch.long))
