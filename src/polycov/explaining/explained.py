"""Everything a page or a figure shows about an image: views of its score, and similar training images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.explaining.explain import (
    BATCH_SIZE,
    RUNNER_UP,
    ImageLike,
    Seen,
    explain_seen,
    look_at,
    per_image,
    prepare_images,
)
from polycov.explaining.explanation import Explanation
from polycov.explaining.neighbour import Neighbour
from polycov.explaining.training_images import TrainingImages
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.progress import SILENT, Progress


@dataclass(frozen=True)
class ExplainedImage:
    """What there is to say about one image.

    Attributes:
        views: explanations of one image, the most telling first: the class against another, the class, the other.
        neighbours: similar training images, the most similar first.
        truth: the true class; None if it is unknown.
        anchor: where a link to the image leads on a page; None for a number.
    """

    views: Sequence[Explanation]
    neighbours: Sequence[Neighbour] = ()
    truth: str | None = None
    anchor: str | None = None


def explain_images(
    model: Model,
    images: ImageLike | Tensor | Iterable[ImageLike],
    *,
    classes: str | Sequence[str] | None = None,
    against: str | Sequence[str] | None = RUNNER_UP,
    names: Sequence[str] | None = None,
    training: TrainingImages | None = None,
    neighbours: int = 4,
    progress: Progress = SILENT,
) -> list[ExplainedImage]:
    """Explains images from all sides: a class against another, each of the two alone, and similar training images.

    Args:
        model: to explain.
        images: as for `explain`.
        classes: as for `explain`; default: the predicted class.
        against: as for `explain`; None for no other class.
        names: of the images; default: their files.
        training: the training images of the model; None for no neighbours.
        neighbours: similar training images per image.
        progress: receives the number of images done.

    Raises:
        PolycovError: as for `explain`.
    """
    files, prepared = prepare_images(model, images)
    names = files if names is None else names
    if len(names) != len(prepared):
        raise PolycovError(f"Expected one of names per image, {len(prepared)} in all, got {len(names)}.")
    targets, others = (per_image(classes, len(names), "classes"), per_image(against, len(names), "against"))
    batch, views = torch.stack(list(prepared)), list[list[Explanation]]()
    with progress.task("explaining", len(names)) as task, evaluation_mode(model):
        for start in range(0, len(names), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            views += _views(model, look_at(model, names[part], batch[part]), targets[part], others[part])
            task.advance(len(names[part]))
    similar: list[list[Neighbour]] = [[] for _ in names]
    if training is not None and neighbours:
        similar = training.nearest(batch, neighbours, progress=progress)
    return [ExplainedImage(sides, nearest) for sides, nearest in zip(views, similar, strict=True)]


def _views(
    model: Model, seen: Seen, classes: Sequence[str | None], against: Sequence[str | None]
) -> list[list[Explanation]]:
    """The views of each image: the class against the other, the class, the other."""
    sides = [explain_seen(model, seen, classes, against)]
    others = [first.against for first in sides[0] if first.against is not None]
    if others:
        nothing = [None] * len(others)
        for alone in ([first.target for first in sides[0]], others):
            sides.append(explain_seen(model, seen, alone, nothing))
    return [list(views) for views in zip(*sides, strict=True)]
