"""Named tensors and notes in one ``.safetensors`` file with a checksum: written in one step, no code is run."""

import hashlib
import importlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.files import write_file
from polycov.system.json_files import parse_json

State = dict[str, Tensor]
# The key of the notes in the metadata of a file, the only one: safetensors writes several in any order. The checksum is
# among the notes.
_NOTES, _CHECKSUM = "polycov", "crc32"


def import_safetensors() -> ModuleType:
    """Returns the module safetensors, with ``safetensors.torch``.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        importlib.import_module("safetensors.torch")
        return importlib.import_module("safetensors")
    except ImportError as error:
        raise MissingDependencyError(
            f"Weights need safetensors ({error}). Install it with: pip install 'polycov[train]'"
        ) from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: dict[str, Any]) -> None:
    """Writes tensors, and notes that JSON can hold, to a ``.safetensors`` file in one step."""
    safetensors = import_safetensors()
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # Not save_file, which leaves a temporary file of its own after a kill, and has no OSError for a full disk.
    text = json.dumps({**notes, _CHECKSUM: _checksum(copies, notes)})
    content = safetensors.torch.save(copies, {_NOTES: text})
    del copies
    write_file(path, lambda temporary: temporary.write_bytes(content))


def load_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """Reads the tensors and notes that `save_tensors` wrote.

    Raises:
        PolycovError: if the file is missing or unreadable, or `save_tensors` did not write it.
    """
    return _read(path, with_tensors=True)


def read_notes(path: Path) -> dict[str, Any]:
    """Reads only the notes; errors as in `load_tensors`."""
    return _read(path, with_tensors=False)[1]


def _read(path: Path, with_tensors: bool) -> tuple[State, dict[str, Any]]:
    safetensors = import_safetensors()
    if not path.is_file():
        raise PolycovError(f"There is no file {str(path)!r}.")
    try:
        if not _is_utf8(path):  # which safetensors does not open
            content = path.read_bytes()
            header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
            metadata, tensors = header["__metadata__"], safetensors.torch.load(content)
        else:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys() if with_tensors}  # noqa: SIM118
    except Exception as error:  # a damaged file makes its reader raise many kinds
        raise PolycovError(f"Cannot read {str(path)!r}: {error}.") from error
    try:
        notes = None if _NOTES not in metadata else parse_json(metadata[_NOTES])
    except ValueError as error:
        raise PolycovError(f"Cannot read the notes in {str(path)!r}: {error}.") from error
    if not isinstance(notes, dict):
        raise PolycovError(f"Cannot read {str(path)!r}: polycov did not write this file.")
    checksum = notes.pop(_CHECKSUM, None)  # older versions wrote none
    if with_tensors and checksum is not None and checksum != _checksum(tensors, notes):
        raise PolycovError(f"Cannot read {str(path)!r}: it is damaged, its checksum is another.")
    return tensors, notes


def _is_utf8(path: Path) -> bool:
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def _checksum(tensors: Mapping[str, Tensor], notes: dict[str, Any]) -> int:
    """A CRC-32 of notes and tensors, in any order of them."""
    total = zlib.crc32(json.dumps(notes, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a SHA-256 of names and values, the same on every device.

    Example:
        >>> digest({"a": torch.zeros(2)}) == digest({"a": torch.zeros(2)}) != digest({"a": torch.ones(2)})
        True
    """
    total = hashlib.sha256()
    for name, tensor in tensors.items():
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
