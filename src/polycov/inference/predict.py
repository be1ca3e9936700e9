"""The most probable classes of images."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polycov.data.image_files import read_image
from polycov.data.transforms import Preprocessing
from polycov.data.walk import list_images
from polycov.errors import NonFiniteError, PolycovError
from polycov.models.backends.frozen import Backend
from polycov.models.frozen_model import FrozenModel
from polycov.models.model import Model
from polycov.models.onnx import OnnxClassifier
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device
from polycov.system.tables import Cell, Table


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image.

    Attributes:
        image: its file.
        classes: names with probabilities, the most probable first; empty if the image cannot be classified.
        problem: why it cannot be classified; empty otherwise.
    """

    image: Path
    classes: tuple[tuple[str, float], ...]
    problem: str = ""


class Classifier:
    """A classifier of image files: a run, a saved model, a name on the hub, or an ONNX file.

    Args:
        source: one of these, or a `Model`.
        device: device to compute on; ONNX files choose their own.
        backend: what runs the backbone of a model; see `FrozenBackbone`.
        images: how many there will be.
        progress: receives which backend was chosen.

    Attributes:
        classes: their names.
        preprocessing: preprocessing of images.
    """

    def __init__(
        self,
        source: str | Path | Model,
        device: str = "auto",
        *,
        backend: Backend = "auto",
        images: int = 1,
        progress: Progress = SILENT,
    ) -> None:
        self._device = torch.device("cpu")
        self._probabilities: Callable[..., Tensor]
        self.classes: list[str]
        self.preprocessing: Preprocessing
        if isinstance(source, str | Path) and str(source).endswith(".onnx"):
            onnx = OnnxClassifier(source)
            self._probabilities = onnx.predict
            self.classes, self.preprocessing = onnx.classes, onnx.preprocessing
            return
        model = source if isinstance(source, Model) else Model.from_pretrained(source)
        self._device = choose_device(device)
        frozen = FrozenModel(model.to(self._device), backend, images=images, batch_size=1, progress=progress)
        self._probabilities = frozen.predict
        self.classes, self.preprocessing = model.classes, model.preprocessing

    def __call__(self, file: Path, top: int = 5, mirror: bool = False) -> Prediction:
        """Returns the most probable classes of an image file."""
        try:
            image = self.preprocessing(read_image(file, least=self.preprocessing.decoded_side))[None].to(self._device)
        except PolycovError as error:
            return Prediction(file, (), str(error))
        try:
            probabilities = self._probabilities(image, mirror=mirror)[0].cpu()
        except NonFiniteError as error:
            return Prediction(file, (), str(error))
        values, indices = torch.topk(probabilities, min(top, len(self.classes)))
        names = (self.classes[i] for i in indices.tolist())
        return Prediction(file, tuple(zip(names, values.tolist(), strict=True)))


def predict(
    source: str | Path | Model,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    mirror: bool = False,
    device: str = "auto",
    backend: Backend = "auto",
    progress: Progress = SILENT,
) -> Iterator[Prediction]:
    """Yields the most probable classes of each image, one after another.

    Args:
        source: folder of a finished run or of a saved model, a name on the hub, an ONNX file, or a `Model`.
        images: image files and folders of images.
        top: the number of classes per image.
        mirror: average predictions over each image and its mirror image.
        device: device to compute on.
        backend: what runs the backbone of a model: "auto", "torch", "onnxruntime" or "openvino"; see `FrozenBackbone`.
        progress: receives the number of images done.

    Raises:
        PolycovError: if the run is not finished, or there are no images.
    """
    if top < 1:
        raise PolycovError(f"Expected top to be at least 1, got {top}.")
    files = image_files([images] if isinstance(images, str | Path) else images)
    classifier = Classifier(source, device, backend=backend, images=len(files), progress=progress)
    return _predictions(classifier, files, top, mirror, progress)


def _predictions(
    classifier: Classifier, files: list[Path], top: int, mirror: bool, progress: Progress
) -> Iterator[Prediction]:
    with progress.task("classifying", len(files)) as task:
        for file in files:
            prediction = classifier(file, top, mirror)
            if prediction.problem:
                progress.message(f"cannot classify {file}: {prediction.problem}")
            yield prediction
            task.advance()


def predictions_table(predictions: Iterable[Prediction], top: int) -> Table:
    """Returns predictions as a table: a row per image, with classes and probabilities."""
    columns = [f"{kind} {i + 1}" for i in range(top) for kind in ("class", "probability")]
    rows: list[list[Cell]] = [
        [str(p.image), *(cell for pair in p.classes for cell in pair)] for p in predictions if not p.problem
    ]
    return Table(("image", *columns), rows)


def image_files(paths: Iterable[str | Path]) -> list[Path]:
    """Returns image files and those in folders, in order.

    Raises:
        PolycovError: if one does not exist, or there are none.
    """
    given = [Path(path) for path in paths]
    files: list[Path] = []
    for path in given:
        if not path.exists():
            raise PolycovError(f"There is no image {str(path)!r}.")
        files += [path / name for name in list_images(path)] if path.is_dir() else [path]
    if not given:
        raise PolycovError("Expected images, or folders of images.")
    if not files:
        raise PolycovError(f"There are no images in {', '.join(map(str, given))}.")
    return files
