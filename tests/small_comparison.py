"""Comparisons of a few methods on a small random network."""

from pathlib import Path
from typing import Any

from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.grid import SettingKey
from polycov.progress import LogProgress
from polycov.system.json_files import read_json_lines

TINY: dict[str, Any] = {
    "backbone": "test_resnet",
    "weights": "none",
    "size": 64,
    "stage": 2,
    "channels": 12,
    "workers": 0,
    "methods": ("average", "isqrt-cov", "fewer-channels", "ipccp-ts", "ipccp-fit"),
    "dims": (8, 16),
}


def flags(**changes: Any) -> list[str]:
    words: list[str] = []
    for name, value in {**TINY, **changes}.items():
        words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def results(folder: Path) -> dict[SettingKey, tuple[str, str]]:
    rows = list(read_json_lines(folder / "records.jsonl"))
    found = {(row["method"], row["dim"], row["seed"]): row["measurement"] for row in rows}
    assert len(found) == len(rows)  # no duplicates
    return {key: (measured["test_correct"], measured["val_correct"]) for key, measured in found.items()}


def compare_with_messages(data: Path, out: Path, **changes: Any) -> tuple[Comparison, list[str]]:
    lines: list[str] = []
    options = {**TINY, "seeds": 1, "progress": LogProgress(lines.append), **changes}
    return compare(data, out=out, **options), lines
