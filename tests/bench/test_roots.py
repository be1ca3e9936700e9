"""The table of roots: what it measures on features whose roots are known."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from polycov.bench import roots
from polycov.bench.tables import EXACT, Shape
from polycov.commands import bench as command
from polycov.commands.terminal import Terminal
from polycov.comparing.records import Measurement


class Fake:
    """Random features of eight channels, in place of those of a dataset."""

    channels = 8

    class data:
        source = "fake"

        @staticmethod
        def split(seed: int) -> int:
            return seed

    reduced = None

    def tokens(self, images: int = 6) -> Tensor:
        return torch.randn(images, 40, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(setting: object, data: int, *_: object) -> Measurement:
        made = Measurement.__new__(Measurement)
        object.__setattr__(made, "val_accuracy", 0.5 + data / 10)
        object.__setattr__(made, "test_accuracy", 0.5)
        return made

    monkeypatch.setattr(roots, "measure_frozen", measure)


def test_more_iterations_are_closer_to_the_exact_root_in_value_and_gradient() -> None:
    names = ["sqrt(3)", "sqrt(5)", "sqrt(7)", EXACT]
    ticks: list[int] = []
    rows = list(roots.roots(names, Shape(2, 16, 8), Fake(), 2, 2, lambda: ticks.append(1)))  # type: ignore[arg-type]
    assert [row["function"] for row in rows] == names
    assert [row["products"] for row in rows] == [5, 10, 15, None]
    distances, gradients = ([row[key] for row in rows] for key in ("distance", "gradient_error"))
    assert distances == sorted(distances, reverse=True)
    assert gradients == sorted(gradients, reverse=True)
    assert distances[-1] < 1e-5
    assert rows[0]["eval_ratio"] == rows[0]["train_ratio"] == 1
    assert rows[0]["val_accuracy"] == pytest.approx(55)
    assert rows[0]["val_error"] == pytest.approx(5)
    assert rows[0]["test_error"] == 0
    assert len(ticks) == 2 * 3 + 2 * len(names)


def test_the_distance_of_newton_schulz_is_that_of_its_eigenvalues() -> None:
    tokens = Fake().tokens().double()
    covariance = torch.stack([torch.cov(sample.mT, correction=0) for sample in tokens])
    values = torch.linalg.eigvalsh(covariance)
    y = values / values.sum(1, keepdim=True)
    z = torch.ones_like(y)
    for _ in range(3):
        t = 1.5 - 0.5 * z * y
        y, z = y * t, z * t
    found = y * values.sum(1, keepdim=True).sqrt()
    expected = ((found - values.sqrt()).norm(dim=1) / values.sum(1).sqrt()).mean()
    (row,) = roots.roots(["sqrt(3)"], Shape(2, 16, 8), Fake(), 1, 0)  # type: ignore[arg-type]
    assert row["distance"] == pytest.approx(float(expected), rel=1e-4)
    assert row["val_accuracy"] is None


def test_the_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roots, "local_features", lambda *_: Fake())
    options = command.Bench(functions=("sqrt(5)", EXACT), rounds=1, seeds=2, out=tmp_path)
    command._roots(options, Shape(2, 16, 8), Terminal())
    out = capsys.readouterr().out
    assert "eigenvalues" in out
    assert "55.0 ± 5.0" in out
