"""Linear classifiers: in closed form on frozen features, or trained."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polycov.comparing.protocols.protocol import Encode, FrozenProtocol, Judgement, Pooled, Protocol
from polycov.system.rows import BLOCK, Rows, read_blocks
from polycov.training.ridge import Ridge, fit_ridge


@dataclass(frozen=True)
class ProbeProtocol(FrozenProtocol):
    """A ridge classifier; its strength is chosen on validation."""

    name = "probe"
    words = "a closed-form probe on the frozen backbone."

    def judge(self, pooled: Pooled) -> Judgement:
        """Fits the classifier on training images, for the test on validation images too."""
        features, labels, before = pooled.features, pooled.labels, pooled.validation().features
        again = (features["train"], features["val"]) if pooled.before else None
        ridge = fit_ridge(
            *(before["train"], labels["train"], before["val"], labels["val"], pooled.classes, again),
            memory=pooled.memory,
        )
        truth = labels["test"]
        predictions, losses = _predicted(ridge, features["test"], truth)

        def stored(encode: Encode) -> float:
            found = torch.cat([ridge.predict(encode(block)) for block in read_blocks([features["test"]])])
            return float((found == truth).double().mean())

        return Judgement(
            val=ridge.val_correct,
            test=predictions == truth,
            stored=stored,
            predictions=predictions,
            losses=[round(loss, 3) for loss in losses.tolist()],
            strength=ridge.strength,
            classifier=ridge.weight.numel() + ridge.bias.numel(),
        )


def _predicted(ridge: Ridge, features: Rows, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The classes of features, and their cross-entropies; logits of all of them would be images × classes."""
    classes, losses = [], []
    for block, truth in zip(read_blocks([features]), labels.split(BLOCK), strict=True):
        logits = ridge.logits(block)
        classes.append(logits.argmax(1))
        losses.append(nn.functional.cross_entropy(logits, truth, reduction="none"))
    return torch.cat(classes), torch.cat(losses)


@dataclass(frozen=True)
class TrainProtocol(Protocol):
    """The layers on top of the frozen backbone are trained."""

    name = "train"
    words = "the layers on top of the frozen backbone are trained."


@dataclass(frozen=True)
class FinetuneProtocol(Protocol):
    """Everything is trained."""

    name = "finetune"
    words = "everything is trained."
