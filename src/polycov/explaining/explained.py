"""Everything a page or a figure shows about an image: views of its score, and similar training images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.explaining.explain import RUNNER_UP, ImageLike, explain, prepare_images
from polycov.explaining.explanation import Explanation
from polycov.explaining.neighbour import Neighbour
from polycov.explaining.training_images import TrainingImages
from polycov.models.model import Model
from polycov.progress import SILENT, Progress


@dataclass(frozen=True)
class ExplainedImage:
    """What there is to say about one image.

    Attributes:
        views: explanations of one image, the most telling first: the class against another, the class, the other.
        neighbours: similar training images, the most similar first.
        truth: the true class; None if it is unknown.
        anchor: by which a page can be linked to; None for a number.
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
    batch = torch.stack(list(prepared))
    sides = [explain(model, batch, classes, against, progress=progress)]
    others = [first.against for first in sides[0] if first.against is not None]
    if others:
        for alone in ([first.target for first in sides[0]], others):
            sides.append(explain(model, batch, alone, progress=progress))
    similar: list[list[Neighbour]] = [[] for _ in names]
    if training is not None and neighbours:
        similar = training.nearest(batch, neighbours, progress=progress)
    return [
        ExplainedImage([replace(view, name=name) for view in views], nearest)
        for name, views, nearest in zip(names, zip(*sides, strict=True), similar, strict=True)
    ]
