"""What ``config.json`` says of a model, as plain values: how to make it again, its input and its output."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone
from polycov.models.head import PoolingHead, linear_parts
from polycov.models.model_folder import FORMAT
from polycov.system.environment import versions

_RESULT = ("test_accuracy", "low", "high", "images")


def describe(backbone: Backbone, head: PoolingHead, classes: list[str], preprocessing: Preprocessing) -> dict[str, Any]:
    """Returns the description of a classifier; "model" holds the arguments of `polycov.models.model.create_model`.

    Raises:
        PolycovError: if ``classes`` are not as many names as the classifier has outputs.
    """
    outputs = head.classifier.out_features
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes) or len(classes) != outputs:
        raise PolycovError(
            f"Expected model.classes to be a list of {outputs} names, as many as the classifier has outputs."
        )
    return {
        "format": FORMAT,
        "model": {
            "backbone": backbone.name,
            "stage": backbone.stage,
            "last_stride": backbone.last_stride,
            "channels": 0 if isinstance(head.reduction, nn.Identity) else head.pool.stage_channels,
            "reduction": "linear" if linear_parts(head.reduction) else "relu",
            "pool": head.pool.spec,
            "seed": head.pool.seed,
            "route": head.pool.route,
            "check_finite": head.pool.check_finite,
            "size": backbone.size,
            "num_classes": len(classes),
        },
        "feature": {"channels": head.pool.channels, "dimensions": head.pool.out_features},
        "classes": classes,
        "preprocessing": asdict(preprocessing),
        "versions": versions(),
        "license": backbone.license,
    }


def known_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns "data", "result" and "license" of a description, each only if it has the expected form."""
    facts: dict[str, Any] = {}
    data, result = description.get("data"), description.get("result")
    if isinstance(data, dict) and isinstance(data.get("name"), str) and isinstance(data.get("images"), dict):
        facts["data"] = data
    if isinstance(result, dict) and all(isinstance(result.get(name), int | float) for name in _RESULT):
        facts["result"] = result
    if isinstance(description.get("license"), str):
        facts["license"] = description["license"]
    return facts
