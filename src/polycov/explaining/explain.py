"""Explaining predictions in one call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from polycov.data.image_files import read_image
from polycov.errors import PolycovError, known
from polycov.explaining.evidence import collect_evidence
from polycov.explaining.explanation import EXACT, FIXED, ChannelPair, Explanation
from polycov.explaining.regions import grid_of
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.pool import Pool
from polycov.progress import SILENT, Progress

ImageLike = str | Path | Image.Image
RUNNER_UP = "runner-up"
BATCH_SIZE = 8
CHANNEL_PAIRS = 10


def explain(
    model: Model | str | Path,
    images: ImageLike | Tensor | Iterable[ImageLike],
    classes: str | Sequence[str] | None = None,
    against: str | Sequence[str] | None = None,
    *,
    channel_pairs: int = CHANNEL_PAIRS,
    batch_size: int = BATCH_SIZE,
    progress: Progress = SILENT,
) -> list[Explanation]:
    """Explains predictions: how much each region, and each pair of regions, contributes to a score.

    Args:
        model: a model; or the folder of a finished run or saved model, or a name on the hub.
        images: files or PIL images, or a batch of prepared images (B, 3, H, W).
        classes: the class to explain, one for all images or one per image; default: the predicted class.
        against: a class to compare it with, one for all or one per image; "runner-up" for the most probable other
            class, which also takes the place of a class that is predicted itself; default: none.
        channel_pairs: how many pairs of channels to name.
        batch_size: images per batch.
        progress: receives the number of images done.

    Returns:
        One explanation per image.

    Raises:
        PolycovError: on an unknown class, an image that cannot be read, or a pool without an exact decomposition.

    Example::

        why = polycov.explain("runs/birds-1", "warbler.jpg", against="runner-up")[0]
        why.regions  # (height, width), adds up to why.score - why.constant
    """
    loaded = model if isinstance(model, Model) else Model.from_pretrained(model)
    names, prepared = prepare_images(loaded, images)
    targets = per_image(classes, len(names), "classes")
    others = per_image(against, len(names), "against")
    result: list[Explanation] = []
    with progress.task("explaining", len(names)) as task, evaluation_mode(loaded):
        for start in range(0, len(names), batch_size):
            stop = min(start + batch_size, len(names))
            part = slice(start, stop)
            seen = look_at(loaded, names[part], torch.stack(list(prepared[part])))
            result += explain_seen(loaded, seen, targets[part], others[part], channel_pairs)
            task.advance(stop - start)
    return result


def prepare_images(
    model: Model, images: ImageLike | Tensor | Iterable[ImageLike]
) -> tuple[list[str], Sequence[Tensor]]:
    """Returns names and prepared images; arguments and errors as in `explain`."""
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != 3:
            raise PolycovError(f"Expected prepared images of shape (B, 3, H, W), got {tuple(images.shape)}.")
        return [f"image {i}" for i in range(len(images))], list(images)
    given = [images] if isinstance(images, str | Path | Image.Image) else list(images)
    if not given:
        raise PolycovError("Expected images to explain, got none.")
    names, prepared = [], []
    for i, image in enumerate(given):
        names.append(str(image) if isinstance(image, str | Path) else f"image {i}")
        prepared.append(model.preprocessing(read_image(image, names[-1], least=model.preprocessing.decoded_side)))
    return names, prepared


def per_image(given: str | Sequence[str] | None, count: int, argument: str) -> list[str | None]:
    """Returns an argument that is one for all images, or one per image, as one per image."""
    if given is None or isinstance(given, str):
        return [given] * count
    if len(given) != count:
        raise PolycovError(f"Expected one of {argument} per image, {count} in all, got {len(given)}.")
    return list(given)


def _class_index(model: Model, name: str) -> int:
    if name not in model.classes:
        raise PolycovError(f"Unknown class {name!r}. {known(name, model.classes[:50])}")
    return model.classes.index(name)


def _other(model: Model, name: str | None, target: int, asked: str | None, order: Sequence[int]) -> int | None:
    """The class to compare the target with; the runner-up where that would be the target, and nobody asked for it."""
    if name is None:
        return None
    other = None if name == RUNNER_UP else _class_index(model, name)
    if other == target and asked is not None:
        raise PolycovError(f"Expected two different classes to compare, got {model.classes[target]!r} twice.")
    return next((j for j in order if j != target), None) if other in (None, target) else other


@dataclass(frozen=True)
class Seen:
    """A batch of images that went through a model.

    Attributes:
        names: of the images.
        images: prepared, (B, 3, H, W).
        local: what the pool sees of them, (B, C, H', W') or (B, N, C).
        logits: (B, classes).
    """

    names: Sequence[str]
    images: Tensor
    local: Tensor
    logits: Tensor


@torch.no_grad()
def look_at(model: Model, names: Sequence[str], images: Tensor) -> Seen:
    """Passes prepared images through a model in evaluation mode, for any number of explanations."""
    local = model.local_features(images.to(model.device))
    return Seen(names, images, local, model.classifier(model.pool(local)))


@torch.no_grad()
def explain_seen(
    model: Model,
    seen: Seen,
    classes: Sequence[str | None],
    against: Sequence[str | None],
    channel_pairs: int = CHANNEL_PAIRS,
) -> list[Explanation]:
    """As `explain`, for images that went through the model."""
    names, local, logits = seen.names, seen.local, seen.logits
    order = logits.argsort(1, descending=True)
    targets = [int(order[i, 0]) if name is None else _class_index(model, name) for i, name in enumerate(classes)]
    others = [_other(model, name, targets[i], classes[i], order[i].tolist()) for i, name in enumerate(against)]
    weights, bias = _weights(model, targets, others)
    evidence = collect_evidence(model.pool, local)
    regions, constant = evidence.locations(weights)
    probabilities, shown = logits.softmax(1), unprepared(model, seen.images)
    telling = evidence.channel_pairs(weights)
    return [
        Explanation(
            name=names[i],
            image=shown[i],
            probabilities=[(model.classes[int(j)], float(probabilities[i, j])) for j in order[i, :5]],
            target=model.classes[targets[i]],
            against=None if (other := others[i]) is None else model.classes[other],
            score=float(logits[i, targets[i]] - (0.0 if other is None else logits[i, other])),
            constant=float(constant[i] + bias[i]),
            regions=regions[i].reshape(grid_of(local)).cpu(),
            channel_pairs=_largest(telling[i], channel_pairs),
            note=_note(model.pool),
            _pairs=partial(_pairs, model.pool, local[i : i + 1], weights[i : i + 1]),
        )
        for i in range(len(names))
    ]


def _weights(model: Model, targets: Sequence[int], others: Sequence[int | None]) -> tuple[Tensor, Tensor]:
    """Weights (B, D) and bias (B,) of the scores."""
    weight, bias = model.classifier.weight, model.classifier.bias
    rows, offsets = weight[list(targets)].clone(), bias[list(targets)].clone()
    for i, other in enumerate(others):
        if other is not None:
            rows[i] -= weight[other]
            offsets[i] -= bias[other]
    return rows, offsets


def unprepared(model: Model, images: Tensor) -> Tensor:
    """Returns prepared images, (…, 3, H, W), as the network sees them, with values from 0 to 1."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.preprocessing.mean, model.preprocessing.std))
    return (images.cpu().float() * std + mean).clamp(0, 1)


def _largest(contributions: Tensor, count: int) -> list[ChannelPair]:
    """The pairs that contribute most; a pair and its mirror image count together."""
    folded = torch.triu(contributions) + torch.triu(contributions.mT, 1)
    best = folded.flatten().abs().topk(min(count, folded.numel())).indices
    width = folded.shape[1]
    return [ChannelPair(int(i) // width, int(i) % width, float(folded.flatten()[i])) for i in best]


def _note(pool: Pool) -> str:
    fixed = [stage.partition("(")[0] for stage in pool.spec.split(" | ") if stage in ("signed_sqrt", "l2")]
    return FIXED.format(stages=" and ".join(fixed)) if fixed else EXACT


@torch.no_grad()
def _pairs(pool: Pool, local: Tensor, weights: Tensor) -> Tensor:
    """The pair contributions of one image, (N, N)."""
    return collect_evidence(pool, local).pairs(weights)[0].cpu()
