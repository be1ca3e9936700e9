from pathlib import Path

import pytest

from polycov.bench import figures, tables

ROWS = [
    {"varied": size, "mode": mode, "method": method, size: value, "milliseconds": float(value)}
    for size in figures.SIZES
    for mode in tables.MODES
    for method in tables.GROWTH_METHODS
    for value in (4, 9)
]


def test_the_growth_figure_has_a_line_per_method_and_a_label_per_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "GROWTH", {size: (4, 9) for size in figures.SIZES})
    text = figures.growth_figure(ROWS, tmp_path / "growth.svg").read_text(encoding="utf-8")
    for label in (*figures.SIZES.values(), *tables.GROWTH_METHODS):
        assert f"<!-- {label} -->" in text
