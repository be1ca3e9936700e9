"""The card of a model: data, method, accuracy, licence, and how to use it, from its description."""

from typing import Any

from polycov.models.description import known_facts
from polycov.models.hub import EvalResult, ModelCard, ModelCardData
from polycov.models.model_folder import GENERATED
from polycov.pooling.methods import get_method, list_methods, method_options
from polycov.pooling.spec import parse_spec


def model_card(description: dict[str, Any]) -> ModelCard:
    """Returns the card of a model.

    Args:
        description: as `polycov.models.model.Model.describe` returns it, with "data" and "result" if they are known.
    """
    facts = known_facts(description)
    name = f"{description['model']['backbone']} with {_method(description)}"
    front = ModelCardData(
        license=facts.get("license", "unknown"),
        library_name="polycov",
        pipeline_tag="image-classification",
        tags=["second-order-pooling", "covariance-pooling", "image-classification"],
        **_measured(facts, name),
    )
    return ModelCard(f"---\n{front.to_yaml()}\n---\n\n{_text(description, facts, name)}")


def method_name(spec: str, dimensions: int) -> str:
    """Returns the name of the method with this spec and dimension, or the spec if there is none.

    Example:
        >>> method_name("covariance | sqrt(5) | tensor_sketch(512)", 512)
        'ipccp-ts'
    """
    for name in list_methods():
        free = {"dim": dimensions} if "dim" in method_options(name) else {}
        if str(parse_spec(get_method(name)(**free))) == spec:
            return name
    return spec


def _method(description: dict[str, Any]) -> str:
    return method_name(description["model"]["pool"], description["feature"]["dimensions"])


def _measured(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """The accuracy, as the hub's leaderboards read it."""
    if "result" not in facts:
        return {}
    data = facts.get("data", {}).get("name", "unknown")
    row = EvalResult(
        task_type="image-classification",
        dataset_type=data,
        dataset_name=data,
        metric_type="accuracy",
        metric_value=round(facts["result"]["test_accuracy"], 4),
    )
    return {"model_name": name, "eval_results": [row]}


def _rows(description: dict[str, Any], facts: dict[str, Any]) -> list[tuple[str, str]]:
    model, feature, prepared = (description[key] for key in ("model", "feature", "preprocessing"))
    method = _method(description)
    paper = " ".join((get_method(method).__doc__ or "").split()) if method in list_methods() else ""
    stage = "last layer" if model["stage"] is None else f"stage {model['stage']}"
    size = prepared["size"]
    return [
        ("data", _data(facts, len(description["classes"]))),
        ("test accuracy", _accuracy(facts)),
        ("method", f"`{method}` {paper}".strip()),
        ("spec", f"`{model['pool']}`"),
        ("feature", f"{feature['dimensions']} dimensions from {feature['channels']} channels, seed {model['seed']}"),
        ("backbone", f"{_literal(model['backbone'])} from timm, {stage}"),
        ("images", f"{size} × {size}, {prepared['interpolation']}, resized to {prepared['resize']}"),
        ("licence", _literal(facts.get("license", "unknown"))),
        ("versions", ", ".join(f"{name} {version}" for name, version in description["versions"].items())),
    ]


def _data(facts: dict[str, Any], classes: int) -> str:
    if "data" not in facts:
        return "unknown"
    images = ", ".join(f"{count} {split}" for split, count in facts["data"]["images"].items())
    return f"{_literal(facts['data']['name'])}: {classes} classes; images: {_literal(images)}"


def _accuracy(facts: dict[str, Any]) -> str:
    if "result" not in facts:
        return "not measured"
    result = facts["result"]
    interval = f"95 % interval: {result['low']:.1%} to {result['high']:.1%}"
    return f"{result['test_accuracy']:.2%} on {result['images']} test images ({interval})"


def _text(description: dict[str, Any], facts: dict[str, Any], name: str) -> str:
    classes = description["classes"]
    table = "\n".join(f"| {title} | {_inline(text)} |" for title, text in _rows(description, facts))
    listed = ", ".join(_inline(_literal(name)) for name in classes[:200]) + (" …" if len(classes) > 200 else "")
    return f"""# {name}

An image classifier with second-order pooling, made with polycov.

| | |
|---|---|
{table}

```python
import polycov
from PIL import Image

model = polycov.Model.from_pretrained("THIS_MODEL")
image = model.preprocessing(Image.open("image.jpg").convert("RGB"))
probabilities = model.predict(image[None])[0]
print(model.classes[int(probabilities.argmax())])
```

Classes: {listed}

{GENERATED}
"""


def _inline(text: str) -> str:
    """A text for a line of Markdown, also in a table."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line.replace("|", "\\|").replace("<", "&lt;").encode("utf-8", "replace").decode()


def _literal(text: str) -> str:
    """A text from outside that Markdown shows as it is: no link, no image from another place, no formatting."""
    for character in "\\`*_[]!":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("://", "&#58;//").replace("www.", "www&#46;")
