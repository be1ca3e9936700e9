"""Checkpoints: one file of tensors and plain numbers, written in one step; no pickle."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from polycov.errors import PolycovError
from polycov.files import write
from polycov.weights import load_exactly


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Writes tensors and notes (plain values) to a ``.safetensors`` file in one step."""
    from safetensors.torch import save_file

    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write(path, lambda beside: save_file(whole, beside, {"polycov": json.dumps(notes)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `save_tensors` wrote.

    Raises:
        PolycovError: if the file is missing, broken, or of something else.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise PolycovError(f"There is no file {str(path)!r}.")
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {})["polycov"])
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise PolycovError(f"Cannot read {str(path)!r}: {error}.") from error


def save_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any]) -> None:
    """Writes model, optimiser and progress."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    plain: dict[str, dict[str, Any]] = {}
    state = optimizer.state_dict()["state"]
    for number, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{name}"] = value
            else:
                plain.setdefault(str(number), {})[name] = value
    save_tensors(path, tensors, {"progress": progress, "optimizer": plain})


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Puts a checkpoint back into model and optimiser, and returns the progress.

    Raises:
        PolycovError: if it is missing or broken, or does not fit.
    """
    tensors, notes = load_tensors(path)
    own = {name[len("model.") :]: t for name, t in tensors.items() if name.startswith("model.")}
    load_exactly(model, own, f"The checkpoint {path.name!r}")
    state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in notes["optimizer"].items()}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return notes["progress"]
