"""Checkpoints: one file of tensors and plain numbers, written in one step; no pickle."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from polycov.errors import PolycovError
from polycov.models.tensors import State, load_tensors, save_tensors
from polycov.models.weights import load_exactly


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any], identity: str | None = None
) -> None:
    """Writes model, optimiser and progress, with the identity of the run they belong to.

    Raises:
        PolycovError: if the optimiser keeps something that is neither a tensor nor a plain value.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    plain: dict[str, Any] = {}
    for place, values in _optimizer_state(optimizer).items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{place}.{name}"] = value
    try:
        save_tensors(path, tensors, {"progress": progress, "optimizer": plain, "run": identity})
    except TypeError as error:
        raise PolycovError(f"The state of {type(optimizer).__name__} cannot be saved: {error}.") from error


def _optimizer_state(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The state of an optimiser by place: of each parameter, and of each group besides its options."""
    options = {"params", "lr", "full_lr", *optimizer.defaults}
    places = {f"optimizer.{index}": values for index, values in optimizer.state_dict()["state"].items()}
    for index, group in enumerate(optimizer.param_groups):
        places[f"group.{index}"] = {name: value for name, value in group.items() if name not in options}
    return places


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, identity: str | None = None) -> dict[str, Any]:
    """Restores model and optimiser from a checkpoint, and returns the progress.

    Raises:
        PolycovError: if the checkpoint is missing or damaged, belongs to another run, or does not fit.
    """
    tensors, notes = load_of_run(path, identity)
    own = {name[len("model.") :]: t for name, t in tensors.items() if name.startswith("model.")}
    load_exactly(model, own, f"The checkpoint {path.name!r}")
    state: dict[int, dict[str, Any]] = {}
    groups = optimizer.state_dict()["param_groups"]
    try:
        progress: dict[str, Any] = notes["progress"]
        for key, value in {**tensors, **notes["optimizer"]}.items():
            place, _, rest = key.partition(".")
            index, _, name = rest.partition(".")
            if place == "optimizer":
                state.setdefault(int(index), {})[name] = value
            elif place == "group":
                groups[int(index)][name] = value
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PolycovError(f"The checkpoint {str(path)!r} does not fit: {error}.") from error
    return progress


def load_of_run(path: Path, identity: str | None) -> tuple[State, dict[str, Any]]:
    """Reads tensors and notes of a file that belongs to the run of this identity.

    Raises:
        PolycovError: if the file is missing or damaged, or belongs to another run.
    """
    tensors, notes = load_tensors(path)
    if notes.get("run") != identity:
        raise PolycovError(
            f"{str(path)!r} belongs to another run. Remove it to start this run again from its beginning."
        )
    return tensors, notes
