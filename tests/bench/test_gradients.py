from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

from polycov.bench import figures
from polycov.bench.gradients import APPROXIMATE, CONDITIONS, conditioned, directions, exact_gradient, gradients
from polycov.commands import main as cli


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e12])
def test_the_condition_number_is_the_one_asked_for(condition: float) -> None:
    x = conditioned(condition).double()
    singular = torch.linalg.svdvals(x - x.mean(1, keepdim=True))
    assert torch.allclose((singular[:, 0] / singular[:, -1]) ** 2, torch.tensor(condition).double(), rtol=0.2)


@pytest.mark.parametrize("iterations", [None, 5, 30])
@pytest.mark.parametrize("condition", [1.0, 1e4, 1e10])
def test_the_reference_is_the_derivative_in_high_precision(
    condition: float, iterations: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpmath.mp, "dps", 60)
    tokens, along = conditioned(condition)[:1, :, :4], directions()[:1, :4, :4]
    step = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = difference(tokens[0].double().numpy(), step[0].numpy(), along[0].numpy(), iterations)
    gradient = exact_gradient(tokens, along, iterations)
    assert abs(float((gradient * step).sum()) - expected) <= 1e-8 * float(gradient.norm() * step.norm())


def difference(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    step: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    along: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    iterations: int | None,
) -> float:
    """The central difference of ⟨W, f(C)⟩ along a step of 1e-25, with sixty digits."""
    h = mpmath.mpf(10) ** -25

    def value(sign: int) -> mpmath.mpf:
        rows = mpmath.matrix(x.tolist()) + sign * h * mpmath.matrix(step.tolist())
        n, c = rows.rows, rows.cols
        means = [mpmath.fsum(rows[i, j] for i in range(n)) / n for j in range(c)]
        centred = mpmath.matrix(n, c)
        for i in range(n):
            for j in range(c):
                centred[i, j] = rows[i, j] - means[j]
        root = matrix_root(centred.T * centred / n, iterations)
        return mpmath.fsum(mpmath.mpf(along[i, j]) * root[i, j] for i in range(c) for j in range(c))

    return float((value(1) - value(-1)) / (2 * h))


def matrix_root(matrix: mpmath.matrix, iterations: int | None) -> mpmath.matrix:
    """The root by eigenvalues, or Newton–Schulz as printed."""
    if iterations is None:
        values, vectors = mpmath.eigsy(matrix)
        return vectors * mpmath.diag([mpmath.sqrt(v) for v in values]) * vectors.T
    trace = mpmath.fsum(matrix[i, i] for i in range(matrix.rows))
    eye = mpmath.eye(matrix.rows)
    y, z = matrix / trace, eye
    for _ in range(iterations):
        t = (3 * eye - z * y) / 2
        y, z = y * t, t * z
    return y * mpmath.sqrt(trace)


def test_gradients_of_the_library_are_exact_where_formulas_with_differences_are_not(tmp_path: Path) -> None:
    rows = list(gradients())
    for row in rows:
        if row["group"] == "polycov":
            assert row["largest_error"] < 2e-4, row
    at = {(row["method"], row["condition"]): row for row in rows}
    assert at["eigh, autograd, float64", 1.0]["not_finite"] == 16
    assert at["MPN-COV, float32", 1e8]["median_error"] > 0.01
    assert at["iSQRT-COV, k=30, float32", 1e12]["not_finite"] > 0
    assert {row["condition"] for row in rows} == set(CONDITIONS)
    text = figures.gradients_figure(rows, tmp_path / "gradients.svg").read_text(encoding="utf-8")
    assert "<!-- sqrt(exact) -->" in text
    assert not [name for name in APPROXIMATE if f"<!-- {name} -->" in text]


def test_the_command_writes_table_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycov.bench.gradients.CONDITIONS", (1.0, 1e6))
    cli.main(["bench", "--what", "gradients", "--out", str(tmp_path)])
    assert {path.suffix for path in tmp_path.glob("gradients-*")} == {".csv", ".svg"}
