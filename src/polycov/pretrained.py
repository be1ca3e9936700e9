"""Models as folders: ``config.json``, ``model.safetensors`` and a card. The folder of a finished run is one too."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.files import read_json, write_json
from polycov.methods import get_method, list_methods, method_options
from polycov.model import Model, create_model
from polycov.spec import parse_spec
from polycov.train.checkpoint import load_tensors, save_tensors
from polycov.versions import versions
from polycov.weights import load_exactly

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
PICKLES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")


def describe_model(model: Model) -> dict[str, Any]:
    """Returns what makes the model again, and what it takes and says, as plain values."""
    return {
        "format": FORMAT,
        "model": {
            "backbone": model.backbone.name,
            "stage": model.backbone.stage,
            "last_stride": model.backbone.last_stride,
            "channels": 0 if isinstance(model.reduction, nn.Identity) else model.pool.channels,
            "reduction": "linear" if isinstance(model.reduction, nn.Conv2d) else "relu",
            "pool": model.pool.spec,
            "seed": model.pool.seed,
            "size": model.backbone.size,
            "num_classes": len(model.classes),
        },
        "classes": model.classes,
        "preprocessing": asdict(model.preprocessing),
        "versions": versions(),
    }


def write_weights(folder: Path, model: Model) -> None:
    """Writes the weights of a model."""
    save_tensors(folder / WEIGHTS, model.state_dict(), {"format": FORMAT})


def write_pretrained(folder: Path, model: Model) -> None:
    """Writes the configuration and the weights of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"license": model.backbone.license, **model.about}
    write_json(folder / CONFIG, describe_model(model) | about)
    write_weights(folder, model)


def find_pretrained(name: str, **options: Any) -> Path:
    """Returns the folder of a model: the one given, or a copy of the one of this name on the hub.

    Args:
        name: a folder, or a name on the Hugging Face hub.
        options: of the download.

    Raises:
        PolycovError: if there is none.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolycovError(
            f"There is no folder {name!r}. A model is a folder, or a name on the hub such as 'me/birds'."
        )
    try:
        config, _ = (Path(hf_hub_download(name, file, **options)) for file in (CONFIG, WEIGHTS))
        return config.parent
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise PolycovError(f"There is no folder {name!r}, and the hub does not give such a model: {why}") from error


def read_pretrained(folder: Path) -> Model:
    """Makes the model of a folder again, in evaluation mode; nothing is downloaded, and nothing in it is run.

    Raises:
        PolycovError: if the folder is no model, has a pickle, or its arrays do not fit.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise PolycovError(f"{str(folder)!r} is neither a run nor a model: it has no {CONFIG}.")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLES)
    if pickles:
        raise PolycovError(
            f"{str(folder)!r} has {', '.join(map(repr, pickles[:5]))}: perhaps a pickle, and a pickle can run code. "
            f"Only {WEIGHTS!r} is read; take the other away if you want this model."
        )
    described = read_json(folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        if "config" in described:
            raise PolycovError(f"The run {str(folder)!r} is not finished. Go on with: polycov train --resume {folder}")
        raise PolycovError(f"There is no {WEIGHTS} in {str(folder)!r}.")
    try:
        model = create_model(**described["model"], weights="none")
        prepared: dict[str, Any] = described["preprocessing"]
        prepared |= {name: tuple(prepared[name]) for name in ("mean", "std")}
        model.preprocessing = Preprocessing(**prepared)
        model.classes = list(described["classes"])
        model.about = {name: described[name] for name in ("data", "result", "license") if name in described}
    except (KeyError, TypeError, AttributeError) as error:
        raise PolycovError(f"The {CONFIG} of {str(folder)!r} is not one of this version: {error!r}.") from error
    if len(model.classes) != model.classifier.out_features:
        raise PolycovError(f"The {CONFIG} of {str(folder)!r} has {len(model.classes)} classes for another number.")
    load_exactly(model, load_tensors(folder / WEIGHTS)[0], f"The model of {str(folder)!r}")
    return model.eval()


def model_card(model: Model) -> "ModelCard":
    """Returns the card of a model: data, method, accuracy, licence, and how to use it."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    data, result = model.about.get("data", {}), model.about.get("result", {})
    measured: dict[str, Any] = {}
    if result:
        row = EvalResult(
            task_type="image-classification",
            dataset_type=data.get("name", "unknown"),
            dataset_name=data.get("name", "unknown"),
            metric_type="accuracy",
            metric_value=round(result["test_accuracy"], 4),
        )
        measured = {"model_name": f"{model.backbone.name} with {method_of(model)}", "eval_results": [row]}
    front = ModelCardData(
        license=model.about.get("license", model.backbone.license),
        library_name="polycov",
        pipeline_tag="image-classification",
        tags=["second-order-pooling", "covariance-pooling", "image-classification"],
        **measured,
    )
    return ModelCard(f"---\n{front.to_yaml()}\n---\n\n{_card_text(model, data, result)}")


def method_of(model: Model) -> str:
    """Returns the name of the method that a model pools by, or its spec if it has none."""
    for name in list_methods():
        free = {"dim": model.pool.out_features} if "dim" in method_options(name) else {}
        if str(parse_spec(get_method(name)(**free))) == model.pool.spec:
            return name
    return model.pool.spec


def _card_text(model: Model, data: dict[str, Any], result: dict[str, Any]) -> str:
    pool, prepared = model.pool, model.preprocessing
    method = method_of(model)
    paper = " ".join((get_method(method).__doc__ or "").split()) if method in list_methods() else ""
    stage = "its last layer" if model.backbone.stage is None else f"its stage {model.backbone.stage}"
    if result:
        interval = f"95 %: {result['low']:.1%} to {result['high']:.1%}"
        accuracy = f"{result['test_accuracy']:.2%} on {result['pictures']} test pictures ({interval})"
    else:
        accuracy = "not measured"
    pictures = ", ".join(f"{count} {part}" for part, count in data.get("pictures", {}).items())
    rows = [
        ("data", f"{data['name']}: {len(model.classes)} classes; pictures: {pictures}" if data else "not stated"),
        ("test accuracy", accuracy),
        ("method", f"`{method}` {paper}".strip()),
        ("spec", f"`{pool.spec}`".replace("|", "\\|")),
        ("feature", f"{pool.out_features} dimensions from {pool.channels} channels, seed {pool.seed}"),
        ("backbone", f"{model.backbone.name} of timm, {stage}"),
        ("pictures", f"{prepared.size} × {prepared.size}, {prepared.interpolation}, resized to {prepared.resize}"),
        ("licence", model.about.get("license", model.backbone.license)),
        ("made with", ", ".join(f"{name} {number}" for name, number in versions().items())),
    ]
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    shown = ", ".join(model.classes[:200]) + (" …" if len(model.classes) > 200 else "")
    return f"""# {model.backbone.name} with {method}

A classifier of pictures by second-order pooling, made with polycov.

| | |
|---|---|
{table}

```python
import polycov
from PIL import Image

model = polycov.Model.from_pretrained("THIS_MODEL")
image = model.preprocessing(Image.open("picture.jpg").convert("RGB"))
probabilities = model.predict(image[None])[0]
print(model.classes[int(probabilities.argmax())])
```

Classes: {shown}
"""
