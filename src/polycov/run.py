"""The folder of a run: what was asked for, what was measured, and the model, which can be made again from it."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from polycov.data.images import ImageData
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.files import read_json, write_json
from polycov.model import Model, create_model
from polycov.train.checkpoint import load_tensors, save_tensors
from polycov.train.config import Config, from_dict
from polycov.weights import load_exactly

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """A trained classifier with all that is needed to use it.

    Attributes:
        folder: of the run.
        config: of the run.
        model: trained, in evaluation mode.
        classes: their names.
        preprocessing: of pictures.
        data: name, fingerprint and numbers of the data it learned from.
    """

    folder: Path
    config: Config
    model: Model
    classes: list[str]
    preprocessing: Preprocessing
    data: dict[str, Any]


def describe(config: Config, model: Model, data: ImageData, preprocessing: Preprocessing) -> dict[str, Any]:
    """Returns what ``config.json`` holds."""
    from torch import nn

    linear = isinstance(model.reduction, nn.Conv2d)
    return {
        "format": FORMAT,
        "config": config.to_dict(),
        "model": {
            "backbone": model.backbone.name,
            "stage": model.backbone.stage,
            "last_stride": model.backbone.last_stride,
            "channels": 0 if isinstance(model.reduction, nn.Identity) else model.pool.channels,
            "reduction": "linear" if linear else "relu",
            "pool": model.pool.spec,
            "seed": model.pool.seed,
            "size": model.backbone.size,
            "num_classes": len(data.classes),
        },
        "classes": data.classes,
        "preprocessing": asdict(preprocessing),
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint(),
            "pictures": {part: len(samples) for part, samples in data.parts.items()},
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of what a result depends on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("polycov", "timm", "accelerate", "numpy", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def save_model(folder: Path, model: Model) -> None:
    """Writes the weights of a finished run."""
    save_tensors(folder / "model.safetensors", model.state_dict(), {"format": FORMAT})


def write_config(folder: Path, description: dict[str, Any]) -> None:
    """Writes ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", description)


def load_run(folder: str | Path) -> Run:
    """Makes the model of a finished run again; nothing is downloaded.

    Raises:
        PolycovError: if the folder is not a run, the run is not finished, or its weights do not fit.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise PolycovError(f"There is no run {str(folder)!r}.")
    if not (folder / "config.json").is_file():
        raise PolycovError(f"{str(folder)!r} is not a run: it has no config.json.")
    description = read_json(folder / "config.json")
    if not (folder / "model.safetensors").is_file():
        raise PolycovError(f"The run {str(folder)!r} is not finished. Go on with: polycov train --resume {folder}")
    try:
        model = create_model(**description["model"], weights="none")
        prepared = description["preprocessing"]
        prepared |= {name: tuple(prepared[name]) for name in ("mean", "std")}
        run = Run(
            folder,
            from_dict(description["config"], "config.json"),
            model,
            description["classes"],
            Preprocessing(**prepared),
            description["data"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PolycovError(f"The config.json of {str(folder)!r} is not one of this version: {error}.") from error
    load_exactly(model, load_tensors(folder / "model.safetensors")[0], f"The model of {str(folder)!r}")
    model.eval()
    return run
