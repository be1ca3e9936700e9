"""Comparisons of today's probes: learned queries are trained, and a class token is handed over by the backbone."""

from pathlib import Path
from typing import Any

import pytest

from fake_images import write_data
from polycov.comparing.compare import compare
from polycov.errors import PolycovError
from polycov.training.run_folder import load_run
from polycov.training.train import train

TINY: dict[str, Any] = {"weights": "none", "channels": 12, "workers": 0, "seeds": 1}
VIT: dict[str, Any] = {**TINY, "backbone": "test_vit", "size": 160}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=8, test=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))


def test_a_closed_form_refuses_what_needs_training(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"'efficient-probe' has parameters that must be trained.*--head train"):
        compare(trees, out=tmp_path / "cmp", methods=("average", "efficient-probe"), **VIT)
    with pytest.raises(PolycovError, match=r"'attentive-probe' has parameters .*polycov train --freeze"):
        train(trees, out=tmp_path / "run", pool="attentive-probe", probe=True, weights="none", backbone="test_vit")


def test_a_class_token_is_not_compared_in_closed_form_but_can_be_probed(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"'class_token' reads a class token.*--head train, or .* --probe"):
        compare(trees, out=tmp_path / "cmp", methods=("average", "class_token"), **VIT)
    options: dict[str, Any] = {"weights": "none", "backbone": "test_vit", "size": 160, "workers": 0, "probe": True}
    run = train(trees, out=tmp_path / "run", pool="class_token", **options)
    assert load_run(run.folder).model.pool.prefix_tokens == 1


@pytest.mark.slow
def test_probes_are_trained_side_by_side(trees: Path, tmp_path: Path) -> None:
    methods = ("class_token", "attentive-probe", "efficient-probe", "simpool", "isqrt-cov")
    comparison = compare(trees, out=tmp_path / "cmp", methods=methods, head="train", epochs=1, **VIT)
    assert {record.method for record in comparison.records} == set(methods)
