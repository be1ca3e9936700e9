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


def test_a_closed_form_refuses_what_needs_training(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"'efficient-probe' has parameters that must be trained.*--head train"):
        compare(trees, out=tmp_path / "cmp", methods=("average", "efficient-probe"), **VIT)
    with pytest.raises(PolycovError, match=r"'attentive-probe' has parameters .*polycov train --freeze"):
        train(trees, out=tmp_path / "run", pool="attentive-probe", probe=True, weights="none", backbone="test_vit")


def test_class_tokens_are_compared_in_closed_form_and_agree_with_the_probe(trees: Path, tmp_path: Path) -> None:
    mixed = "[class_token, covariance | sqrt(5) | triu]"
    methods = ("average", "class-token", "class-token-mean", mixed)
    comparison = compare(trees, out=tmp_path / "cmp", methods=methods, explain=False, **VIT)
    found = {record.method: record.measurement for record in comparison.records}
    assert set(found) == set(methods)
    width = found["average"].dimensions
    assert (found["class-token"].dimensions, found["class-token-mean"].dimensions) == (width, 2 * width)
    assert found[mixed].dimensions == 12 + 12 * 13 // 2
    options: dict[str, Any] = {**VIT, "channels": None, "probe": True, "cache": tmp_path / "other"}
    options.pop("seeds")
    for method in ("class-token", "class-token-mean"):
        run = train(trees, out=tmp_path / method, pool=method, **options)
        assert run.test_accuracy == pytest.approx(found[method].test_accuracy)
        assert run.val_accuracy == pytest.approx(found[method].val_accuracy)


def test_a_class_token_that_the_network_does_not_have_is_refused(trees: Path, tmp_path: Path) -> None:
    options = {**TINY, "backbone": "test_resnet", "size": 64}
    with pytest.raises(PolycovError, match=r"'class-token' reads a class token, and the backbone .* gives none"):
        compare(trees, out=tmp_path / "cmp", methods=("average", "class-token"), **options)
    with pytest.raises(PolycovError, match=r"'class-token' .* all channels: use --store-channels 0"):
        compare(trees, out=tmp_path / "reduced", methods=("class-token",), store_channels=16, **VIT)


def test_a_class_token_is_probed(trees: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": "none", "backbone": "test_vit", "size": 160, "workers": 0, "probe": True}
    run = train(trees, out=tmp_path / "run", pool="class_token", **options)
    assert load_run(run.folder).model.pool.prefix_tokens == 1


@pytest.mark.slow
def test_probes_are_trained_side_by_side(trees: Path, tmp_path: Path) -> None:
    methods = ("class-token", "class-token-mean", "attentive-probe", "moment-probing", "simpool", "isqrt-cov")
    comparison = compare(trees, out=tmp_path / "cmp", methods=methods, head="train", epochs=1, **VIT)
    assert {record.method for record in comparison.records} == set(methods)
