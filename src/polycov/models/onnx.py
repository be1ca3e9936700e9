"""ONNX files that polycov wrote, run by onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycov.data.transforms import Preprocessing
from polycov.errors import MissingDependencyError, PolycovError, first_line
from polycov.models.model import probabilities
from polycov.models.model_folder import FORMAT
from polycov.system.formats import require_format
from polycov.system.json_files import parse_json
from polycov.system.structure import structure

METADATA_KEY = "polycov"
INSTALL = "Install it with: pip install 'polycov[export]'"


class OnnxFile:
    """An ONNX file that polycov wrote, run by onnxruntime without any torch module.

    Args:
        path: path of the file.

    Attributes:
        description: its metadata.

    Raises:
        MissingDependencyError: if onnxruntime is not installed.
        PolycovError: if the file is missing or unreadable.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingDependencyError(f"ONNX files need onnxruntime ({error}). {INSTALL}") from error
        if not Path(path).is_file():
            raise PolycovError(f"There is no file {str(path)!r}.")
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        except Exception as error:  # onnxruntime has an exception of its own for every way to fail
            raise PolycovError(f"Cannot read {str(path)!r}: {first_line(error)}.") from error
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        if not inputs or not outputs:
            raise PolycovError(f"Cannot use {str(path)!r}: it has no inputs or no outputs.")
        self.input, self.output = inputs[0], outputs[0]
        metadata = self.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        try:
            self.description: dict[str, Any] = structure(dict[str, Any], parse_json(metadata or "{}"), "it")
        except ValueError as error:
            raise PolycovError(f"The metadata of {str(path)!r} is damaged: {error}.") from error
        if "format" in self.description:
            require_format(self.description["format"], FORMAT, f"The file {str(path)!r}", "Export the model again.")

    def __call__(self, *inputs: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Returns the output for a batch, given all inputs of the file in order.

        Raises:
            PolycovError: if the file does not accept the batch.
        """
        half = self.input.type == "tensor(float16)"
        names = [entry.name for entry in self.session.get_inputs()]
        try:
            feed = {name: x.astype(np.float16) if half else x for name, x in zip(names, inputs, strict=True)}
            return self.session.run(None, feed)[0]
        except Exception as error:  # as above
            shapes = " and ".join(str(x.shape) for x in inputs)
            raise PolycovError(f"The ONNX file does not accept an array of shape {shapes}: {error}") from error


class OnnxClassifier:
    """A classifier in an ONNX file, used like a `polycov.models.model.Model`.

    Args:
        path: path of the file.

    Attributes:
        classes: their names.
        preprocessing: preprocessing of the images.
        device: the CPU, where `predict` returns its results.

    Raises:
        PolycovError: if the file is not a model that polycov exported.
    """

    device = torch.device("cpu")

    def __init__(self, path: Path | str) -> None:
        self.file = OnnxFile(path)
        try:
            self.classes = structure(list[str], self.file.description["classes"], "the classes")
            self.preprocessing = Preprocessing.from_dict(self.file.description["preprocessing"])
            if list(self.file.output.shape)[-1:] != [len(self.classes)]:
                raise KeyError("classes")
        except (KeyError, TypeError) as error:
            raise PolycovError(f"{str(path)!r} has no class names: it is not a model that polycov exported.") from error
        except PolycovError as error:
            raise PolycovError(f"The metadata of {str(path)!r} is damaged: {error}") from error

    def predict(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Returns the probabilities of the classes, (B, classes), as `polycov.models.model.Model.predict` does.

        Raises:
            NonFiniteError: if the file gives NaN or Inf.
            PolycovError: if it gives something else than one number for each image and class.
        """
        return probabilities(self._logits, images.cpu(), mirror)

    def _logits(self, images: Tensor) -> Tensor:
        logits = self.file(images.contiguous().numpy())
        expected = (len(images), len(self.classes))
        if not isinstance(logits, np.ndarray) or logits.dtype.kind != "f" or logits.shape != expected:
            given = (
                f"{logits.dtype} of shape {logits.shape}" if isinstance(logits, np.ndarray) else type(logits).__name__
            )
            raise PolycovError(f"Expected the ONNX file to give logits of shape {expected}, got {given}.")
        return torch.from_numpy(logits).float()
