"""Checkpoints: one file of tensors and plain numbers, written in one step; no pickle."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from polycov.errors import PolycovError
from polycov.models.tensors import load_tensors, save_tensors
from polycov.models.weights import load_exactly


def save_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any]) -> None:
    """Writes model, optimiser and progress.

    Raises:
        PolycovError: if the optimiser keeps something that is neither a tensor nor a plain value.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    plain: dict[str, Any] = {}
    for place, values in _state(optimizer).items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{place}.{name}"] = value
    try:
        save_tensors(path, tensors, {"progress": progress, "optimizer": plain})
    except TypeError as error:
        raise PolycovError(f"The state of {type(optimizer).__name__} cannot be written: {error}.") from error


def _state(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """What an optimiser keeps, by place: of each parameter, and of each group besides its options."""
    options = {"params", "lr", "full_lr", *optimizer.defaults}
    places = {f"optimizer.{number}": values for number, values in optimizer.state_dict()["state"].items()}
    for number, group in enumerate(optimizer.param_groups):
        places[f"group.{number}"] = {name: value for name, value in group.items() if name not in options}
    return places


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Puts a checkpoint back into model and optimiser, and returns the progress.

    Raises:
        PolycovError: if it is missing or broken, or does not fit.
    """
    tensors, notes = load_tensors(path)
    own = {name[len("model.") :]: t for name, t in tensors.items() if name.startswith("model.")}
    load_exactly(model, own, f"The checkpoint {path.name!r}")
    state: dict[int, dict[str, Any]] = {}
    groups = optimizer.state_dict()["param_groups"]
    for key, value in {**tensors, **notes["optimizer"]}.items():
        place, _, rest = key.partition(".")
        number, _, name = rest.partition(".")
        if place == "optimizer":
            state.setdefault(int(number), {})[name] = value
        elif place == "group":
            groups[int(number)][name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return notes["progress"]
