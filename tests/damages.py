"""Ways in which a file can be damaged, by its kind."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], object]

_TEXTS = {
    "null": "null",
    "a list": "[]",
    "an empty object": "{}",
    "a text": '"²"',
    "a number": "3",
    "nested deeply": "[" * 100_000,
    "too many digits": '{"format": ' + "9" * 5000 + "}",
    "a lone surrogate": '{"format": "\\ud800"}',
}
WRONG: dict[str, Any] = {"null": None, "list": [None], "object": {"²": 1}, "text": "²", "negative": -1, "huge": 10**12}


def _content(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


CONTENT: dict[str, Damage] = {
    "empty": _content(b""),
    "cut": _cut,
    "zeros": _zeros,
    "garbage": _content(b"\xff\x00\xfe" * 40),
    "Latin-1": _content("ça\n".encode("latin-1")),
}
LINKS: dict[str, Damage] = {"a pipe": _pipe, "a link to itself": _link_to_itself}
BYTES = CONTENT | LINKS | {"a folder": _folder}
TEXTS = {name: _content(text.encode()) for name, text in _TEXTS.items()}
JSON = BYTES | TEXTS


def _line(text: str) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes() + text.encode() + b"\n")


LINES = {name: BYTES[name] for name in ("zeros", "garbage", "Latin-1")} | {
    f"a line: {name}": _line(text) for name, text in _TEXTS.items()
}


def _flip(share: float) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 255
        path.write_bytes(content)

    return damage


FLIPS = {f"a byte at {share:.0%}": _flip(share) for share in (0.0, 0.2, 0.4, 0.6, 0.8)}


def _notes(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Writes a safetensors file again, with other notes."""

    def damage(path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            notes = json.loads(file.metadata()["polycov"])
        new = change(notes)
        text = new if isinstance(new, str) else json.dumps(new)
        save_file(load_file(path), path, {} if new is None else {"polycov": text})

    return damage


def _other_tensors(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        notes = file.metadata()
    save_file({"other": torch.zeros(2)}, path, notes)


TENSORS: dict[str, Damage] = {
    **BYTES,
    **FLIPS,
    "without notes": _notes(lambda notes: None),
    "notes are a list": _notes(lambda notes: []),
    "empty notes": _notes(lambda notes: {}),
    "deep notes": _notes(lambda notes: "[" * 100_000),
    "other tensors": _other_tensors,
}


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Returns the content of all files below a folder, without locks."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found[str(path.relative_to(folder))] = "special"
        elif path.is_file() and not path.name.endswith("lock"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
