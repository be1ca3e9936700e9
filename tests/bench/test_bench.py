import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from command_line import fails
from polycov.bench import ideas, steps, tables
from polycov.bench.measure import Tick
from polycov.commands import bench as command
from polycov.commands import main as cli
from polycov.errors import PolycovError

SMALL = ["--batch", "2", "--side", "4", "--channels", "8", "--dim", "16", "--rounds", "2"]


def rows(folder: Path, what: str) -> list[dict[str, str]]:
    (path,) = folder.glob(f"{what}-*-float32-torch*.csv")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_of_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench", *SMALL, "--out", str(tmp_path)])
    table = rows(tmp_path, "methods")
    assert {row["method"] for row in table} == {tables.PLAIN, tables.PAPER, *command.Bench().methods}
    assert {row["mode"] for row in table} == {"eval", "train"}
    assert all(float(row["ratio"]) > 0 and float(row["peak_mib"]) > 0 for row in table)
    out = capsys.readouterr().out
    assert "ipccp-ts, paper" in out
    assert "written:" in out


def test_growth_routes_and_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tables, command):
        monkeypatch.setattr(module, "GROWTH", {"locations": (4, 9), "channels": (4, 6), "dim": (8, 16)})
        monkeypatch.setattr(module, "ROUTE_GRID", ((4, 8), (16, 4)))
    monkeypatch.setattr(steps, "STEP_BACKBONES", {"resnet18": 64})
    monkeypatch.setattr(tables, "DIMS", (8, 16))
    monkeypatch.setattr("polycov.bench.figures.GROWTH", tables.GROWTH)
    cli.main(["bench", *SMALL, "--out", str(tmp_path), "--what", "dims", "growth", "routes", "step", "ideas"])
    assert len({row["group"] for row in rows(tmp_path, "ideas")}) == ideas.GROUPS
    assert {row["dim"] for row in rows(tmp_path, "dims")} == {"8", "16"}
    assert {row["varied"] for row in rows(tmp_path, "growth")} == {"locations", "channels", "dim"}
    assert {row["chosen"] for row in rows(tmp_path, "routes")} == {"gram", "covariance"}
    table = rows(tmp_path, "step")
    assert {(row["method"], row["mode"]) for row in table} == {(m, n) for m in steps.STEP_METHODS for n in tables.MODES}
    for row in table:
        assert float(row["ratio"]) > 0
        assert row["paper_ratio"] == ""  # the paper has no resnet18
        if row["method"] == tables.PLAIN:
            assert float(row["ratio"]) == 1
    assert len(list(tmp_path.glob("*.svg"))) == 1


def test_ratios_of_the_papers_table() -> None:
    assert steps.paper_ratio("resnet50", "ipccp-rm, paper", "train") == pytest.approx(0.24 / 0.16)
    assert steps.paper_ratio("resnet50", "monet-2-rm", "eval") == pytest.approx(0.52 / 0.05)
    assert steps.paper_ratio("resnet101", "monet-2-rm", "train") == pytest.approx(0.71 / 0.23)
    assert steps.paper_ratio("resnet101", "ipccp-ts", "train") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nonsense"], "Unknown method 'nonsense'"),
        (["--what", "faithfulness"], "'faithfulness' needs a finished run: add --run RUN"),
        (["--device", "cuda"], "The device 'cuda' is not available"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in fails("bench", *SMALL, "--out", tmp_path, *arguments)


def test_explanations_and_their_maps(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("polycov.bench.explain.SMALLER", (4, 6))
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    few = ["--run", str(run), "--images", "2", "--share", "0.5", "--maps", "exact", "random"]
    cli.main(["bench", *SMALL, "--out", str(tmp_path), "--what", "explain", "faithfulness", *few])
    assert {row["method"] for row in rows(tmp_path, "explain")} == {"isqrt-cov", "ipccp-ts", "ipccp-fit", "average"}
    assert {row["map"] for row in rows(tmp_path, "faithfulness")} == {"exact", "random"}
    assert len(list(tmp_path.glob("faithfulness-*.svg"))) == 1
    assert "2 images" in capsys.readouterr().out


def test_rounds_are_timed_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def whole_steps(shape: tables.Shape, rounds: int, tick: Tick | None = None) -> Iterator[tables.Row]:
        timed.append(rounds)
        row: dict[str, float | str | None] = dict.fromkeys(("step_seconds", "paper_ratio"))
        row |= {"backbone": "resnet18", "mode": "eval", "method": "average"}
        yield row | dict.fromkeys(("pool_seconds", "share", "ratio"), 1.0)

    monkeypatch.setattr(steps, "whole_steps", whole_steps)
    for arguments in (["--rounds", "4"], []):
        cli.main(["bench", "--what", "step", *arguments, "--out", str(tmp_path)])
    assert timed == [4, 3]
    with pytest.raises(PolycovError, match="at least 1, or 0 for the default, got -1"):
        command.run(["--rounds=-1"])


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--what" in out
    assert "Dimensions of the sketches" in out
