from pathlib import Path

from polycov.comparing.report.figures import write_figures
from polycov.comparing.statistics import Point


def test_a_long_spec_leaves_room_for_the_curves(tmp_path: Path) -> None:
    """matplotlib warns, and warnings are errors, if a legend pushes the axes out of the figure."""
    spec = "[average, covariance | sqrt_minimax(9) | count_sketch(32768)] | balance(fit=classes) | project(512)"
    points = [Point(name, None, 512, 128, 2048, 2, 0.8, 0.01, 0.7, 0.01, 1.0, None) for name in ("average", spec)]
    names = write_figures(tmp_path, points)
    assert names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{n}.{k}" for n in names for k in ("svg", "png"))
