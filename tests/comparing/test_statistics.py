from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from polycov.comparing.recommendation import Recommendation
from polycov.comparing.recommendation import recommend as recommend_point
from polycov.comparing.records import Measurement, Record, pack
from polycov.comparing.statistics import Scored, paired_test, paired_val, points, standard_error
from polycov.errors import PolycovError

Flags = np.ndarray[Any, Any]


def record(method: str, dim: int | None, seed: int, test: Flags, val: Flags, size: int) -> Record:
    measurement = Measurement(
        spec=method,
        channels=8,
        dimensions=size,
        bytes=4 * size,
        pool_ms=1.0 + seed,
        val_accuracy=float(val.mean()),
        test_accuracy=float(test.mean()),
        test_images=len(test),
        val_correct=pack(torch.from_numpy(val)),
        test_correct=pack(torch.from_numpy(test)),
        kernel_error=None if dim is None else 0.1 * (seed + 1),
    )
    return Record(method, dim, seed, "probe", measurement, 1.0, 1, "cpu", {})


def records(method: str, dim: int | None, size: int, share: float, seeds: int = 4, count: int = 600) -> list[Record]:
    """Images have a difficulty that all methods share; the easier ones are classified correctly."""
    result = []
    for seed in range(seeds):
        noise = np.random.default_rng([seed, size])
        hard = {split: np.random.default_rng(i).uniform(size=count) for i, split in enumerate(("test", "val"))}
        correct = {split: hard[split] + noise.normal(0, 0.05, count) < share for split in hard}
        result.append(record(method, dim, seed, correct["test"], correct["val"], size))
    return result


def recommend(found: list[Record], scored: dict[int, Scored]) -> Recommendation | None:
    return recommend_point(found, points(found), scored)


def judged(count: int, seeds: int = 4) -> dict[int, Scored]:
    """All seeds judge the same images."""
    return {seed: {"val": list(range(count)), "test": list(range(count))} for seed in range(seeds)}


SPLITS = judged(600)


def test_points_are_means_with_scipys_standard_errors() -> None:
    rows = records("ipccp-ts", 64, 64, 0.7)
    (point,) = points(rows)
    values = [row.measurement.test_accuracy for row in rows]
    assert point.test == pytest.approx(np.mean(values))
    assert point.test_error == pytest.approx(stats.sem(values))
    assert point.pool_ms == 2.5
    assert point.kernel_error == pytest.approx(np.sqrt(np.mean([0.01, 0.04, 0.09, 0.16])))
    assert np.isnan(standard_error([0.5]))


def test_a_paired_difference_is_measurable_where_unpaired_accuracies_would_not_be() -> None:
    better, worse = records("a", None, 10, 0.72), records("b", None, 20, 0.70)
    gap = paired_test(better, worse, SPLITS)
    assert gap is not None
    assert gap.mean == pytest.approx(0.02, abs=0.01)
    assert gap.measurable
    assert gap.low > 0
    assert gap.p < 0.05
    unpaired = 1.96 * np.sqrt(2 * 0.7 * 0.3 / 600)
    assert gap.high - gap.low < unpaired


def test_seeds_may_judge_different_images() -> None:
    """The mean of each seed counts alike, and so does each image that a seed judged."""
    a, b = np.array([True, True, False, True]), np.array([False, True, False, False])
    one = [record("a", None, 0, a, a, 1), record("a", None, 1, a[:2], a[:2], 1)]
    other = [record("b", None, 0, b, b, 1), record("b", None, 1, b[:2], b[:2], 1)]
    gap = paired_test(one, other, {0: {"test": [1, 2, 3, 4]}, 1: {"test": [3, 9]}})
    assert gap is not None
    assert gap.mean == pytest.approx(0.5)
    assert gap.low >= 0
    with pytest.raises(PolycovError, match="Expected the scores of 30 images or episodes"):
        paired_test(one, other, {0: {"test": list(range(30))}, 1: {"test": [3, 9]}})


def test_scores_may_be_fractions() -> None:
    values = np.random.default_rng(0).uniform(size=300)
    rows = [record("a", None, seed, values, values, 1) for seed in range(2)]
    (point,) = points(rows)
    assert point.interval == pytest.approx(1.96 * stats.sem([*values, *values]), rel=1e-4)
    gap = paired_test(rows, [record("b", None, s, values - 0.1, values, 1) for s in range(2)], judged(300))
    assert gap is not None
    assert gap.mean == pytest.approx(0.1, abs=1e-6)
    (point,) = points(records("a", None, 10, 0.7))
    assert point.interval is None


def test_metrics_are_means_over_seeds() -> None:
    rows = records("a", None, 10, 0.7, seeds=3)
    rows = [replace(r, measurement=replace(r.measurement, metrics={"mAP": 0.1 * (r.seed + 1)})) for r in rows]
    (point,) = points(rows)
    assert point.metrics["mAP"] == pytest.approx((0.2, stats.sem([0.1, 0.2, 0.3])))
    (point,) = points([*rows[:2], replace(rows[2], measurement=replace(rows[2].measurement, metrics=None))])
    assert point.metrics == {}


def test_a_method_does_not_differ_from_itself() -> None:
    rows = records("a", None, 10, 0.7, seeds=4)
    gap = paired_test(rows, rows, SPLITS)
    assert gap is not None
    assert (gap.mean, gap.low, gap.high, gap.p) == (0, 0, 0, 1)
    assert not gap.measurable


@pytest.mark.slow
def test_the_interval_of_a_paired_difference_covers_the_truth() -> None:
    """Of 100 experiments with a true difference of 0, about 95 intervals hold 0."""
    covered = 0
    for i in range(100):
        rng = np.random.default_rng(i)
        a, b = rng.uniform(size=(2, 200)) < 0.7
        paired = paired_val([record("a", None, 0, a, a, 1)], [record("b", None, 0, b, b, 1)], judged(200), seed=i)
        assert paired is not None
        gap, images = paired
        assert images == 200
        covered += gap.low <= 0 <= gap.high
    assert 88 <= covered <= 99


def test_an_image_held_out_by_several_seeds_counts_once() -> None:
    a, b = np.array([True, True]), np.array([False, True])
    one = [record("a", None, seed, a, a, 1) for seed in (0, 1)]
    other = [record("b", None, seed, b, b, 1) for seed in (0, 1)]
    paired = paired_val(one, other, {0: {"val": [7, 8]}, 1: {"val": [7, 9]}})
    assert paired is not None
    gap, images = paired
    assert images == 3
    assert gap.mean == pytest.approx(1 / 3)  # image 7 always gained, 8 and 9 never


def test_the_smallest_feature_that_is_not_measurably_below_the_best_is_recommended() -> None:
    rows = records("average", None, 32, 0.50) + records("ipccp-ts", 256, 256, 0.745)
    rows += records("ipccp-ts", 512, 512, 0.75) + records("isqrt-cov", None, 8256, 0.752)
    found = recommend(rows, SPLITS)
    assert found is not None
    assert found.chosen.dimensions in (256, 512)
    assert found.best.dimensions in (512, 8256)
    assert "dimensions" in str(found)
    clear = records("average", None, 32, 0.50) + records("isqrt-cov", None, 8256, 0.75)
    alone = recommend(clear, SPLITS)
    assert alone is not None
    assert alone.chosen == alone.best
    assert "everything smaller is measurably worse" in str(alone)


def test_the_test_images_play_no_part_in_the_choice() -> None:
    rows = records("average", None, 32, 0.50) + records("isqrt-cov", None, 8256, 0.75)
    swapped = []
    for row in rows:
        flags = np.full(600, row.method == "average")
        changes: dict[str, Any] = {"test_correct": pack(torch.from_numpy(flags)), "test_accuracy": float(flags.mean())}
        swapped.append(replace(row, measurement=replace(row.measurement, **changes)))
    found = recommend(swapped, SPLITS)
    assert found is not None
    assert found.chosen.method == "isqrt-cov"


def test_settings_without_a_common_seed_are_not_compared() -> None:
    one, other = records("a", None, 10, 0.7)[:2], records("b", None, 20, 0.9)[2:]
    assert paired_test(one, other, SPLITS) is None
    assert paired_val(one, other, SPLITS) is None
    found = recommend([*one, *other], SPLITS)
    assert found is not None
    assert found.chosen.method == "b"


def test_the_words_say_what_was_and_what_was_not_compared() -> None:
    alone = recommend(records("a", None, 10, 0.7), SPLITS)
    assert alone is not None
    assert str(alone).endswith(
        "Nothing is better on the 600 validation images of all seeds, and nothing smaller was compared."
    )
    clear = recommend(records("a", None, 10, 0.5) + records("b", None, 20, 0.9), SPLITS)
    assert clear is not None
    assert str(clear).endswith("and everything smaller is measurably worse.")
    few = judged(12)
    rows = records("a", None, 10, 0.6, count=12) + records("b", None, 20, 0.75, count=12)
    unclear = recommend(rows, few)
    assert unclear is not None
    assert unclear.chosen.method == "a"
    assert "on the 12 validation images" in str(unclear)
    lead = "Too few images to be sure: the 12 validation images of all seeds cannot rule out a loss of"
    assert str(unclear).startswith(lead)


def test_the_options_of_train_for_what_is_recommended() -> None:
    for method, dim, flags in (
        ("average", None, ["--pool", "average"]),
        ("average-last", None, ["--pool", "average", "--stage", "last"]),
        ("ipccp-ts", 10, ["--pool", "ipccp-ts", "--dim", "10", "--channels"]),
        ("fewer-channels", 10, ["--pool", "isqrt-cov", "--channels"]),
    ):
        found = recommend(records(method, dim, 10, 0.7), SPLITS)
        assert found is not None
        channels = [str(found.chosen.channels)] if "--channels" in flags else []
        assert found.train_flags() == [*flags, *channels]


def test_a_tie_on_few_images_is_said_to_be_one() -> None:
    right = np.ones(5, dtype=bool)
    rows = [record("average", None, 0, right, right, 48), record("ipccp-fit", 3, 0, right, right, 3)]
    tie = recommend(rows, judged(5))
    assert tie is not None
    assert (tie.best.method, tie.chosen.method) == ("average", "ipccp-fit")
    assert str(tie) == (
        "Too few images to be sure: the 5 validation images of all seeds cannot rule out a loss of 60 points. Add "
        "images or seeds. Until then, use ipccp-fit with 3 dimensions (12 bytes per image): 100.0% on the test images. "
        "Nothing is better on the 5 validation images of all seeds, and nothing smaller was compared."
    )
    alone = recommend(rows[:1], judged(5))
    assert alone is not None
    assert "rule out" not in str(alone)  # there is nothing to lose against
