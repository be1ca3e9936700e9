"""Explaining image files in one call: a page, or figures for a paper."""

from collections.abc import Iterable
from pathlib import Path

from polycov.data.image_files import read_image
from polycov.errors import PolycovError
from polycov.explaining.explain import RUNNER_UP
from polycov.explaining.explained import explain_images
from polycov.explaining.figure import write_explanation_figure
from polycov.explaining.page import write_explanation_page
from polycov.explaining.training_images import training_images_of
from polycov.inference.predict import image_files
from polycov.models.model import Model
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device

FIGURES = (".png", ".svg", ".pdf")


def write_explanations(
    model: str | Path,
    images: str | Path | Iterable[str | Path],
    out: str | Path = "explanations.html",
    *,
    target: str | None = None,
    against: str | None = RUNNER_UP,
    neighbours: int = 4,
    device: str = "auto",
    progress: Progress = SILENT,
) -> list[Path]:
    """Explains images in a page, or in figures; returns the files written.

    Args:
        model: folder of a finished run or of a saved model, or a name on the hub.
        images: image files and folders of images.
        out: an ``.html`` file for one page; a ``.png``, ``.svg`` or ``.pdf`` file for figures, which are numbered if
            there are several images.
        target: the class to explain; default: the predicted class.
        against: the class to compare it with, or "runner-up"; None for none.
        neighbours: similar training images per image, on a page of a run whose images are still there; 0 for none.
        device: to compute on.
        progress: receives messages and progress.

    Raises:
        PolycovError: if there is no such model, image or class, or ``out`` has another ending. Among several images,
            unreadable ones are skipped and named.

    Example::

        write_explanations("runs/birds-1", ["warbler.jpg", "sparrow.jpg"], "page.html")
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", *FIGURES) or out.is_dir():
        raise PolycovError(f"Expected out to be a file that ends in .html, .png, .svg or .pdf, got {str(out)!r}.")
    if neighbours < 0:
        raise PolycovError(f"Expected neighbours to be at least 0, got {neighbours}.")
    files = _readable(image_files([images] if isinstance(images, str | Path) else images), progress)
    page = out.suffix.lower() == ".html"
    loaded = Model.from_pretrained(model).to(choose_device(device))
    training = training_images_of(model, loaded, progress) if page and neighbours else None
    explained = explain_images(
        loaded, files, classes=target, against=against, training=training, neighbours=neighbours, progress=progress
    )
    if page:
        return [write_explanation_page(out, explained)]
    paths = [out] if len(files) == 1 else [out.with_stem(f"{out.stem}-{i}") for i in range(1, len(files) + 1)]
    return [write_explanation_figure(path, item) for path, item in zip(paths, explained, strict=True)]


def _readable(files: list[Path], progress: Progress) -> list[Path]:
    """The images that can be read; the others are named.

    Raises:
        PolycovError: if there is none.
    """
    readable: list[Path] = []
    for file in files:
        try:
            read_image(file)
        except PolycovError as error:
            if len(files) == 1:
                raise
            progress.message(f"skipped: {error}")
        else:
            readable.append(file)
    if not readable:
        raise PolycovError("None of the images can be read.")
    return readable
