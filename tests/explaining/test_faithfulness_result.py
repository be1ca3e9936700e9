import numpy as np
import pytest

from polycov.explaining.faithfulness_result import CurveRecord, Faithfulness

IMAGES = 40


def record(image: int, name: str, seed: int, deletion: list[float], insertion: list[float]) -> CurveRecord:
    margin = [[10 * value for value in curve] for curve in (deletion, insertion)]
    return CurveRecord(
        settings="s",
        image=f"image {image}",
        map=name,
        seed=seed,
        label=int(image < 10),
        predicted=1,
        counts=[0, 1, 4],
        deletion=[deletion, margin[0]],
        insertion=[insertion, margin[1]],
        inside=None if image == 0 else 0.8,
        area=None if image == 0 else 0.3,
    )


@pytest.fixture(scope="module")
def result() -> Faithfulness:
    rng = np.random.default_rng(0)
    records = []
    for image in range(IMAGES):
        base = rng.uniform(0.3, 0.6)
        for seed in range(2):
            down = [1.0, base + 0.1 * seed, 0.0]
            records.append(record(image, "random", seed, down, down[::-1]))
        records.append(record(image, "exact", 0, [1.0, base - 0.2, 0.0], [0.0, base + 0.25, 1.0]))
        shuffled = base + 0.05 + rng.normal(0, 0.1)
        records.append(record(image, "untrained", 0, [1.0, shuffled, 0.0], [0.0, shuffled, 1.0]))
        # better at deletion alone
        records.append(record(image, "half", 0, [1.0, base - 0.2, 0.0], [0.0, base, 1.0]))
    return Faithfulness(records)


def test_names_accuracy_and_fractions(result: Faithfulness) -> None:
    assert result.maps == ["random", "exact", "untrained", "half"]
    assert len(result.images) == IMAGES
    assert result.accuracy == 10 / IMAGES
    assert result.fractions == [0.0, 0.25, 1.0]


def test_curves_and_areas_are_means_over_seeds_then_images(result: Faithfulness) -> None:
    middle = [r.deletion[0][1] for r in result.records if r.map == "random"]
    assert result.curve("random", "deletion")[1].mean == pytest.approx(np.mean(middle))
    area = 0.25 * (1 + np.mean(middle)) / 2 + 0.75 * np.mean(middle) / 2
    assert result.area("random", "deletion").mean == pytest.approx(area)
    assert result.area("random", "deletion", "margin").mean == pytest.approx(10 * area)


def test_differences_are_paired_by_image(result: Faithfulness) -> None:
    gap = result.difference("exact", "random", "deletion")
    assert gap.mean == pytest.approx(-0.25 / 2)  # the middle is 0.2 + 0.05 lower, and its trapezoids have width 1
    assert gap.high - gap.low < 1e-9  # the same for every image, however the images differ
    spread = result.area("exact", "deletion")
    assert spread.high - spread.low > 0.01


@pytest.mark.parametrize(("name", "passes"), [("exact", True), ("untrained", False), ("half", False)])
def test_a_map_passes_if_it_is_better_at_deletion_and_insertion(result: Faithfulness, name: str, passes: bool) -> None:
    assert result.passes(name) is passes
    assert result.passes(name, "margin") is passes
    assert not result.passes(name, against=name)


def test_the_share_inside_boxes_is_over_the_images_that_have_one(result: Faithfulness) -> None:
    inside = result.inside("exact")
    assert inside is not None
    assert inside[0].mean == pytest.approx(0.8)
    assert inside[1].mean == pytest.approx(0.5)
    assert Faithfulness([r for r in result.records if r.inside is None]).inside("exact") is None


def test_the_table_has_a_row_per_map_and_leaves_a_map_against_itself_empty(result: Faithfulness) -> None:
    table = result.table()
    assert [row[0] for row in table.rows] == result.maps
    exact = dict(zip(table.columns, table.rows[1], strict=True))
    assert exact["deletion − exact"] == ""
    assert str(exact["deletion − random"]).startswith("-0.125")
