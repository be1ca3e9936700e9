"""The folder of a run: what was asked for, what was measured, and the model, which can be made again from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polycov.data.images import ImageData
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.model import Model
from polycov.models.pretrained import CONFIG, describe_model, read_pretrained
from polycov.system.files import read_json, write_json
from polycov.training.config import Config, from_dict


@dataclass(frozen=True)
class Run:
    """A trained classifier with all that is needed to use it.

    Attributes:
        folder: of the run.
        config: of the run.
        model: trained, in evaluation mode.
        data: name, fingerprint and numbers of the data it learned from.
    """

    folder: Path
    config: Config
    model: Model
    data: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return self.model.classes

    @property
    def preprocessing(self) -> Preprocessing:
        """How pictures are prepared."""
        return self.model.preprocessing


def describe(config: Config, model: Model, data: ImageData) -> dict[str, Any]:
    """Returns what ``config.json`` holds."""
    facts = {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "pictures": {part: len(samples) for part, samples in data.parts.items()},
    }
    return {**describe_model(model), "config": config.to_dict(), "data": facts, "license": model.backbone.license}


def write_config(folder: Path, description: dict[str, Any]) -> None:
    """Writes ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, description)


def load_run(folder: str | Path) -> Run:
    """Makes the model of a finished run again; nothing is downloaded.

    Raises:
        PolycovError: if the folder is not a run, the run is not finished, or its weights do not fit.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise PolycovError(f"There is no run {str(folder)!r}.")
    model = read_pretrained(folder)
    described = read_json(folder / CONFIG)
    try:
        return Run(folder, from_dict(described["config"], CONFIG), model, described["data"])
    except (KeyError, TypeError) as error:
        raise PolycovError(f"{str(folder)!r} is a model, not a run of polycov train: no {error} in it.") from error
