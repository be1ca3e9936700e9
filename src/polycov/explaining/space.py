"""A Hugging Face Space: a folder with a model and the app that shows it."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polycov.errors import PolycovError
from polycov.models.export import ExportResult, export
from polycov.models.model import Model
from polycov.models.model_card import model_card
from polycov.models.model_folder import ModelFolder
from polycov.system.files import write_text

GRADIO = "6.31.0"  # the oldest that the app runs with
APP = '''"""A classifier made with polycov: its classes for an image, and the evidence for them."""

from pathlib import Path

from polycov.explaining.app import make_app
from polycov.explaining.app_server import serve

app = make_app([Path(__file__).parent / "model"], neighbours=False)

if __name__ == "__main__":
    serve(app, host=None)  # the Space says where to listen
'''


def write_space(
    model: Model | str | Path, folder: str | Path, *, title: str | None = None, license: str | None = None
) -> ExportResult:
    """Writes a Hugging Face Space: ``model/``, ``app.py``, ``requirements.txt`` and ``README.md``.

    Training images are not part of it. A README that the user wrote is kept.

    Args:
        model: a model; or the folder of a finished run or saved model, or a name on the hub.
        folder: to write to.
        title: of the Space; by default the name of the data.
        license: that the README states; by default that of the backbone's weights.

    Raises:
        PolycovError: if there is no such model, or it cannot be saved.
    """
    model, folder = model if isinstance(model, Model) else Model.from_pretrained(model), Path(folder)
    if folder.is_file():
        raise PolycovError(f"Expected a folder for the Space, got the file {str(folder)!r}.")
    export(model, folder / "model", license=license)
    write_text(folder / "app.py", APP)
    write_text(folder / "requirements.txt", f"polycov[app]=={version('polycov')}\n")
    ModelFolder(folder).write_card(_readme(model, title, license))
    return ExportResult(folder, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()), None)


def _readme(model: Model, title: str | None, license: str | None) -> str:
    """The text of the model's card, below what the hub needs to know about the Space."""
    description = model.describe() | ({} if license is None else {"license": license})
    front = {
        "title": title or description.get("data", {}).get("name", "polycov"),
        "sdk": "gradio",
        "sdk_version": _gradio_version(),
        "app_file": "app.py",
        "license": description.get("license") or "unknown",
        "tags": ["image-classification", "second-order-pooling"],
    }
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())  # JSON is YAML
    text = model_card(description).text.strip().replace('"THIS_MODEL"', '"model"')
    return f"---\n{lines}\n---\n\n{text}\n"


def _gradio_version() -> str:
    try:
        return version("gradio")
    except PackageNotFoundError:
        return GRADIO
