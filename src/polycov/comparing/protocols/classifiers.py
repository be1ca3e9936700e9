"""Linear classifiers: in closed form on frozen features, or trained."""

from dataclasses import dataclass

import torch
from torch import nn

from polycov.comparing.protocols.protocol import Encode, FrozenProtocol, Judgement, Pooled, Protocol
from polycov.training.ridge import fit_ridge


@dataclass(frozen=True)
class ProbeProtocol(FrozenProtocol):
    """A ridge classifier; its strength is chosen on validation."""

    name = "probe"
    words = "a closed-form probe on the frozen backbone."

    def judge(self, pooled: Pooled) -> Judgement:
        """Fits the classifier on training images, for the test on validation images too."""
        features, labels, before = pooled.features, pooled.labels, pooled.validation().features
        known = torch.cat([features["train"], features["val"]])
        ridge = fit_ridge(before["train"], labels["train"], before["val"], labels["val"], pooled.classes, known)
        logits, truth = ridge.logits(features["test"]), labels["test"]
        losses = nn.functional.cross_entropy(logits, truth, reduction="none")

        def stored(encode: Encode) -> float:
            return float((ridge.predict(encode(features["test"])) == truth).double().mean())

        return Judgement(
            val=ridge.val_correct,
            test=logits.argmax(1) == truth,
            stored=stored,
            predictions=logits.argmax(1),
            losses=[round(loss, 3) for loss in losses.tolist()],
            strength=ridge.strength,
            classifier=ridge.weight.numel() + ridge.bias.numel(),
        )


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
