import csv
from pathlib import Path

import pytest
import torch

from polycov.bench import ideas, measure, tables
from polycov.bench.reference import plain_isqrt_cov
from polycov.commands import bench as command
from polycov.commands import main as cli
from polycov.pooling.moments import scaled_covariance, second_moment
from samples import features


def test_the_reference_is_isqrt_cov_without_root_two() -> None:
    x = features(2, 36, 5).mT.unflatten(-1, (6, 6))
    ours = tables.Shape(channels=5, dtype="float64").module("isqrt-cov")(x)
    rows, columns = torch.triu_indices(5, 5)
    torch.testing.assert_close(plain_isqrt_cov(x) * torch.where(rows == columns, 1.0, 2**0.5), ours, rtol=1e-6, atol=0)


def test_peak_memory_is_what_is_held_at_once() -> None:
    def run() -> None:
        a = torch.zeros(2**20)  # 4 MiB
        del a
        b = torch.zeros(2**20)
        c = torch.zeros(2**19)
        del b, c

    assert measure.peak_memory(run, "cpu") == 6 * 2**20


def test_interleave_times_all_in_every_round() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = measure.interleave(runs, 4)
    assert {name: len(t) for name, t in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert [order[i : i + 3] for i in range(0, 15, 3)][:3] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


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
        monkeypatch.setattr(module, "STEP_BACKBONES", {"resnet18": 64})
    monkeypatch.setattr(tables, "DIMS", (8, 16))
    monkeypatch.setattr("polycov.bench.figures.GROWTH", tables.GROWTH)
    cli.main(["bench", *SMALL, "--out", str(tmp_path), "--what", "dims", "growth", "routes", "step", "ideas"])
    assert len({row["group"] for row in rows(tmp_path, "ideas")}) == ideas.GROUPS
    assert {row["dim"] for row in rows(tmp_path, "dims")} == {"8", "16"}
    assert {row["varied"] for row in rows(tmp_path, "growth")} == {"locations", "channels", "dim"}
    assert {row["chosen"] for row in rows(tmp_path, "routes")} == {"gram", "covariance"}
    assert {row["method"] for row in rows(tmp_path, "step")} == set(tables.STEP_METHODS)
    assert len(list(tmp_path.glob("*.svg"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nonsense"], "Unknown method 'nonsense'"),
        (["--device", "cuda"], "The device 'cuda' is not available"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match=message):
        cli.main(["bench", *SMALL, "--out", str(tmp_path), *arguments])


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--what" in out
    assert "Dimensions of the sketches" in out


def test_ideas_compute_the_same() -> None:
    x = features(2, 30, 6)
    rows, scale = scaled_covariance(x)
    c = second_moment(rows) * (scale**2)[:, None, None]
    torch.testing.assert_close(ideas.folded(x), c)
    a = c / c.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    torch.testing.assert_close(ideas.unrolled(a, 5), ideas.fused(a, 5))
    lost, ours = ideas.folding_error()
    assert ours < 1e-6 < 1e-4 < lost
