"""Comparisons of specs that name stages of the network: features are extracted once, stage by stage."""

from pathlib import Path
from typing import Any

import pytest

from fake_images import write_classes
from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.dry_run import plan_comparison
from polycov.comparing.options import CompareOptions
from polycov.comparing.records import Measurement
from polycov.errors import PolycovError
from polycov.pooling.methods import create_pool
from polycov.training.config import replace_options
from polycov.training.run_folder import load_run
from polycov.training.train import train
from small_comparison import TINY, compare_with_messages

ROOT = "covariance | sqrt(5) | triu"
LAST = "stage(last) | average"
MEAN_OF_LAST = f"[{LAST}, {ROOT}]"
SMALL = {key: TINY[key] for key in ("backbone", "weights", "size", "stage", "channels", "workers")}
TWO_ROOTS = f"[stage(1) | {ROOT}, stage(2) | {ROOT}] | balance"


def measured(comparison: Comparison) -> dict[str, Measurement]:
    return {record.method: record.measurement for record in comparison.records}


def scores(measurement: Measurement) -> tuple[str, str]:
    return measurement.test_correct, measurement.val_correct


def test_a_named_stage_gives_what_a_comparison_of_that_stage_gives(forest: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"explain": False, "quantize": False}
    methods = ("average-last", LAST, "isqrt-cov", f"stage(2) | {ROOT}", f"stage(1) | {ROOT}", "stage(1) | gem(3)")
    found = measured(compare_with_messages(forest, tmp_path / "all", methods=methods, **options)[0])
    other: dict[str, Any] = {"methods": ("isqrt-cov", "gem"), "stage": 1, **options}
    of_stage_1 = measured(compare_with_messages(forest, tmp_path / "1", **other)[0])
    for one, same in [
        (found[LAST], found["average-last"]),
        (found[f"stage(2) | {ROOT}"], found["isqrt-cov"]),
        (found[f"stage(1) | {ROOT}"], of_stage_1["isqrt-cov"]),
        (found["stage(1) | gem(3)"], of_stage_1["gem"]),
    ]:
        assert scores(one) == scores(same)
        assert (one.dimensions, one.channels, one.parameters) == (same.dimensions, same.channels, same.parameters)


@pytest.mark.parametrize("size", [64, 80])  # of 80 pixels, the sides of the stages are no multiples: 20, 10 and 3
@pytest.mark.parametrize("pool", [MEAN_OF_LAST, TWO_ROOTS, f"[stage(last) | {ROOT}, {ROOT}]"])
def test_a_run_is_the_setting_of_the_comparison(forest: Path, tmp_path: Path, pool: str, size: int) -> None:
    options: dict[str, Any] = {"methods": ("isqrt-cov", pool), "size": size, "explain": False, "quantize": False}
    comparison, messages = compare_with_messages(forest, tmp_path / "cmp", **options)
    setting = measured(comparison)[pool]
    run = train(forest, out=tmp_path / "run", pool=pool, probe=True, **(SMALL | {"size": size}))
    assert run.test_accuracy == pytest.approx(setting.test_accuracy)
    assert run.val_accuracy == pytest.approx(setting.val_accuracy)
    model = load_run(run.folder).model
    assert (model.pool.out_features, model.pool.stage_channels) == (setting.dimensions, setting.channels)
    named = "last" if "last" in pool else "1"
    assert any(f"and stage {named}, average of the last layer, in float16" in line for line in messages)


def test_stored_components_are_those_of_each_stage(forest: Path, tmp_path: Path) -> None:
    methods = (MEAN_OF_LAST, LAST)
    options: dict[str, Any] = {"methods": methods, "explain": False, "quantize": False}
    whole = measured(compare_with_messages(forest, tmp_path / "whole", **options)[0])
    few = measured(compare_with_messages(forest, tmp_path / "few", store_channels=16, **options)[0])
    assert scores(few[LAST]) == scores(whole[LAST])  # all channels are stored for a first-order pool
    assert few[MEAN_OF_LAST].dimensions == whole[MEAN_OF_LAST].dimensions == 12 + 12 * 13 // 2


def test_first_order_parts_pool_all_channels_of_the_chosen_stage_too(forest: Path, tmp_path: Path) -> None:
    methods = ("stage(2) | average", f"[{LAST}, average]", "average")
    options: dict[str, Any] = {"methods": methods, "explain": False, "quantize": False}
    few = measured(compare_with_messages(forest, tmp_path / "few", store_channels=16, **options)[0])
    whole = measured(compare_with_messages(forest, tmp_path / "whole", **options)[0])
    assert scores(few[methods[0]]) == scores(few["average"]) == scores(whole["average"])
    assert scores(few[methods[1]]) == scores(whole[methods[1]])


def test_each_stage_has_as_many_channels_as_can_be_fitted_to_it(tmp_path: Path) -> None:
    few = write_classes(tmp_path / "trees", ["ash", "birch"], 6)  # 4 locations of the last layer in each
    methods = (f"stage(last) | {ROOT}", f"stage(1) | {ROOT}", "isqrt-cov")
    options: dict[str, Any] = {"methods": methods, "channels": 40, "explain": False, "quantize": False}
    comparison, messages = compare_with_messages(few, tmp_path / "cmp", **options)
    found = {method: measurement.channels for method, measurement in measured(comparison).items()}
    assert (found[methods[1]], found["isqrt-cov"]) == (32, 40)  # stage 1 has 32
    assert found[methods[0]] < 40
    assert any(f"note: {found[methods[0]]} channels before second-order" in line for line in messages)
    pool, small = f"[stage(last) | {ROOT}, {ROOT}]", SMALL | {"channels": 40}
    with pytest.raises(PolycovError, match="Choose fewer --channels, or add training images"):
        train(few, out=tmp_path / "run", pool=pool, probe=True, **small)


def test_unseen_classes_are_judged_too(tmp_path: Path) -> None:
    seven = write_classes(tmp_path / "trees", list("abcdefg"), 8)
    methods = (MEAN_OF_LAST, f"stage(2) | {ROOT}", "isqrt-cov")
    options: dict[str, Any] = {"methods": methods, "explain": False, "quantize": False, "unseen_classes": 0.4}
    found = measured(compare_with_messages(seven, tmp_path / "cmp", **options)[0])
    metrics = [found[method].metrics or {} for method in methods]
    assert metrics[1] == metrics[2]
    assert metrics[0].keys() == metrics[2].keys()
    assert all(0 <= value <= 1 for value in metrics[0].values())


def test_the_plan_counts_every_stage(forest: Path, tmp_path: Path) -> None:
    def plan(*methods: str) -> float:
        options = CompareOptions(str(forest), methods=methods, seeds=1, out=tmp_path / "cmp")
        return plan_comparison(replace_options(options, {key: TINY[key] for key in TINY if key != "methods"})).bytes

    assert plan("isqrt-cov", f"stage(2) | {ROOT}") == plan("isqrt-cov")
    assert plan("isqrt-cov", TWO_ROOTS) > plan("isqrt-cov")


def test_a_stage_that_does_not_exist_is_refused_before_any_image_is_read(forest: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="Expected a stage from 0 to"):
        compare_with_messages(forest, tmp_path / "cmp", methods=(f"stage(9) | {ROOT}",))
    with pytest.raises(PolycovError, match="Expected a stage such as 4, several such as '3\\+4', or last, got 'top'"):
        compare_with_messages(forest, tmp_path / "cmp2", methods=("stage(top) | average",))


def test_stages_beside_each_other_are_named_in_specs(forest: Path, tmp_path: Path) -> None:
    options = {**TINY, "stage": "1,2,last", "methods": ("average",), "out": tmp_path / "cmp"}
    message = r"one stage, or several joined by \+, such as 1\+2, got '1,2,last'"
    with pytest.raises(PolycovError, match=message):
        compare(forest, **options)
    with pytest.raises(PolycovError, match=message):
        plan_comparison(replace_options(CompareOptions(str(forest)), options))


def test_trained_heads_have_fits_too(forest: Path, tmp_path: Path) -> None:
    pool = f"[stage(1) | {ROOT}, average] | project(4)"
    options: dict[str, Any] = {"methods": (pool,), "head": "train", "epochs": 1, "channels": 6, "explain": False}
    comparison, _ = compare_with_messages(forest, tmp_path / "cmp", **options)
    assert measured(comparison)[pool].dimensions == 4
    chosen = replace_options(CompareOptions(str(forest)), {**TINY, **options, "seeds": 1, "out": tmp_path / "other"})
    assert plan_comparison(chosen).seconds > 0


def test_a_trained_head_has_the_stages_that_it_names(forest: Path, tmp_path: Path) -> None:
    run = train(
        forest,
        out=tmp_path / "run",
        pool=f"[stage(1) | {ROOT} | l2, stage(last) | average | l2]",
        backbone="test_resnet",
        weights="none",
        size=64,
        workers=0,
        channels=6,
        epochs=1,
        batch_size=6,
        freeze=True,
    )
    model = load_run(run.folder).model
    assert model.backbone.stage == "1,last"
    assert model.pool.groups == {"1": 6, "last": 6}
    assert create_pool(model.pool.spec, model.pool.groups).out_features == model.classifier.in_features
