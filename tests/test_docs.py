"""The documentation says what the code does: snippets run, and tables name what is registered."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

import polycov
import polycov.models.backbones
from polycov.pooling import registry
from polycov.pooling.registry import Stage

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")
SPECS = (ROOT / "docs" / "reference" / "specs.md").read_text(encoding="utf-8")


def test_readme_snippets_run() -> None:
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(snippets) >= 1
    for snippet in snippets:
        exec(snippet, names)
    assert tuple(names["features"].shape) == (200, 128)


PAGES = sorted(
    path.relative_to(ROOT / "docs").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if "```python" in path.read_text(encoding="utf-8")
)


def test_every_integration_has_a_page() -> None:
    assert {
        *("compile.md", "export.md", "func.md", "hub.md", "precision.md", "sklearn.md", "timm.md"),
        *("start.md", "frozen.md", "finetune.md", "own.md", "coming_from.md", "reference/specs.md"),
    } <= set(PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore")  # of compilers and exporters
def test_snippets_of_the_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polycov.models.backbones.import_timm()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_STAGES", dict(registry._STAGES))  # a page registers a stage of its own
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S):
        exec(snippet, names)
    if page == "sklearn.md":  # the numbers that the page states
        scores: dict[str, float] = names["scores"]  # type: ignore[assignment]
        assert scores == pytest.approx({"average": 0.556, "isqrt-cov": 0.976}, abs=0.01)


@pytest.mark.parametrize("name", polycov.list_methods() + polycov.list_methods(inputs=2))
def test_the_reference_lists_every_method(name: str) -> None:
    assert f"`{name}`" in METHODS


def test_the_claim_of_the_readme_is_that_of_the_registry_and_of_the_literature() -> None:
    one, two = polycov.list_methods(), polycov.list_methods(inputs=2)
    for page in (README, METHODS):
        assert f"{len(one)} methods of one input and {len(two)} of two" in page
    literature = (ROOT / "docs" / "literature.md").read_text(encoding="utf-8")
    here, absent = literature.split("## What is not here, and why")
    tables = [line for line in here.split("## What they are worth")[0].splitlines() if line.startswith("| `")]
    assert {name for line in tables for name in re.findall(r"`([^`]+)`", line.split("|")[1])} == {*one, *two}
    for name in ("GSoP", "TCPNet", "SPDNet", "NetVLAD"):
        assert name in METHODS
        assert name in absent


@pytest.mark.parametrize("stage", polycov.list_stages(), ids=lambda stage: stage.name)
def test_the_reference_lists_every_stage_and_each_has_a_summary(stage: Stage) -> None:
    assert re.search(rf"`{stage.name}\b", SPECS + METHODS)
    assert len(stage.summary) > 3


def test_the_results_are_those_of_the_tables() -> None:
    """The kernel errors and accuracies of docs/results.md stand in the CSV files that it names."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    with (ROOT / "benchmarks" / "results" / "compare-birds-cpu-torch2.13.0.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for method in ("ipccp-ts", "ipccp-rm", "ipccp-cs"):
        errors = [f"{100 * float(row['kernel_error']):.1f} %" for row in rows if row["method"] == method]
        assert f"| `{method}` | {' | '.join(errors)} |" in page
    for method, kind in (("ipccp-ts", "random"), ("ipccp-cs", "random")):
        accuracies = [f"{100 * float(row['test_accuracy']):.1f}" for row in rows if row["method"] == method]
        assert f"| `{method}`, {kind} | {' | '.join(accuracies)} |" in page


def test_main_names_are_importable_and_sorted() -> None:
    assert polycov.__all__ == sorted(polycov.__all__)
    assert all(hasattr(polycov, name) for name in polycov.__all__)
    assert polycov.functional.__all__ == sorted(polycov.functional.__all__)


def test_user_errors_are_not_asserts() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*assert ", path.read_text(encoding="utf-8"), re.M), path
