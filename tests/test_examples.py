"""The examples run, on what is installed, and show what they say."""

import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
WHEELS = Path(sys.prefix) / "wheels"  # where `make install` downloads them


def main_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.fixture(autouse=True)
def _beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_every_example_is_listed_and_tested() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    own = Path(__file__).read_text(encoding="utf-8")
    shared = {"digit_tokens"}  # what several examples import
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        if path.stem not in shared:
            assert f"[{path.name}](../examples/{path.name})" in page
            assert path.stem in own


def test_a_pool_in_your_own_network_sees_what_an_average_cannot() -> None:
    scores = main_of("own_network")()
    assert scores["average"] < 0.6
    assert scores["isqrt-cov"] > 0.95


def test_a_linear_probe_on_frozen_tokens() -> None:
    scores = main_of("frozen_tokens")()
    assert scores["average"] < 0.5
    assert min(scores["isqrt-cov"], scores["mean-cov-fit"]) > 0.95


def test_two_inputs_tell_what_neither_does() -> None:
    scores = main_of("two_inputs")()
    assert max(scores["first alone"], scores["second alone"]) < 0.6
    assert scores["both"] > 0.95


def test_few_shot() -> None:
    scores = main_of("few_shot")(episodes=50)
    for shots in (1, 5):
        assert scores["isqrt-cov", shots] > scores["average", shots] + 0.2
    assert scores["isqrt-cov", 5] > scores["isqrt-cov", 1]


def test_retrieval() -> None:
    scores = main_of("retrieval")()
    assert scores["average"] < 0.6
    assert scores["isqrt-cov"] > 0.9
    assert abs(scores["ipccp-cs, 32, int8"] - scores["ipccp-cs, 32"]) < 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of scikit-learn and pyRiemann
def test_signals_beside_pyriemann() -> None:
    scores = main_of("signals")()
    assert scores["polycov: average"] < 0.65
    assert scores["polycov: log-euclidean"] > 0.95
    assert scores["pyRiemann: Covariances, TangentSpace"] > 0.95


@pytest.mark.slow
def test_an_explanation_adds_up(tmp_path: Path) -> None:
    why = main_of("explanation")(str(tmp_path / "page.html"))
    assert why.constant + why.regions.sum().item() == pytest.approx(why.score, rel=1e-4)
    assert why.question in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_folder_is_compared(trees: Path, tmp_path: Path) -> None:
    small: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "size": 64, "workers": 0}
    found = main_of("compare_folder")(str(trees), dims=(8,), seeds=1, explain=False, out=tmp_path / "out", **small)
    assert {point.method for point in found.points} == {"average", "isqrt-cov", "mean-cov-fit"}
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["pools", "compare_and_explain"])
def test_notebooks_run_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setitem(os.environ, "MPLBACKEND", "agg")
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for cell in cells:
        exec("".join(cell["source"]), names)
    shown = [
        {**output.get("data", {}), "image/png": None, "text": output.get("text")}
        for cell in cells
        for output in cell["outputs"]
    ]
    assert len(shown) >= 3
    assert not {"Traceback", "/tmp", "/home"} & set(re.findall(r"Traceback|/tmp|/home", json.dumps(shown)))
    if name == "compare_and_explain":
        assert names["run"].test_accuracy > 0.6


@pytest.mark.slow
@pytest.mark.skipif(
    not (list(WHEELS.glob("rxnmapper-*.whl")) and list(WHEELS.glob("chemicals-*.whl"))),
    reason=f"needs pip download --no-deps -d {WHEELS} rxnmapper==0.4.3 chemicals==1.5.2",
)
def test_the_covariance_of_a_transformers_tokens_predicts_better_than_their_mean() -> None:
    errors = main_of("transformer_tokens")(WHEELS)
    assert errors["isqrt-cov"] < 0.85 * errors["average"]
    assert errors["average"] < 30  # kelvin: the tokens carry the boiling point at all


def test_the_example_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"Expected the wheel of chemicals in .*pip download --no-deps"):
        main_of("transformer_tokens")(tmp_path)
