import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from placed_objects import write_placed
from polycov.data.images import Samples
from polycov.data.layouts import read_cub
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.explaining import faithfulness
from polycov.explaining.boxes import Box
from polycov.explaining.faithfulness import measure_faithfulness
from polycov.explaining.faithfulness_options import MAPS, FaithfulnessOptions
from polycov.models.model import Model
from polycov.training.run_folder import load_run
from polycov.training.train import train

CELL = 8


class Drawn:
    """Images of 4 × 4 cells; an item is the cell that is red."""

    always_readable = True

    def open(self, item: int) -> Image.Image:
        rng = np.random.default_rng(item)
        pixels = rng.integers(90, 110, (4 * CELL, 4 * CELL, 3)).astype(np.uint8)
        y, x = (CELL * i for i in divmod(item, 4))
        pixels[y : y + CELL, x : x + CELL] = [250, 0, 0]
        return Image.fromarray(pixels)

    def name(self, item: int) -> str:
        return f"red in cell {item}"

    def stamp(self, item: int) -> str:
        return ""


SAMPLES = Samples(Drawn(), list(range(16)), [0] * 16)


@pytest.fixture
def model() -> Model:
    """Sees the mean colour of each cell; red speaks for class 0."""
    preprocessing = Preprocessing(size=4 * CELL, resize=4 * CELL)
    model = Model(nn.AvgPool2d(CELL), "average", 2, channels=0, preprocessing=preprocessing)
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor([[40.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
        model.classifier.bias.copy_(torch.tensor([8.0, 0.0]))
    return model.eval()


def options(**changes: Any) -> FaithfulnessOptions:
    maps = ("exact", "grad-cam", "random", "untrained")
    values: dict[str, Any] = {"images": 16, "maps": maps, "step": 1 / 16, "hide": "mean"}
    return FaithfulnessOptions(**values | changes)


def test_the_exact_map_hides_the_only_informative_region_first(model: Model) -> None:
    result = measure_faithfulness(model, SAMPLES, options(orders=3))
    assert result.maps == ["exact", "grad-cam", "random", "untrained"]
    assert len(result.images) == 16
    assert result.accuracy == 1
    red = result.curve("exact", "deletion", "margin")
    assert red[0].mean - red[1].mean > 0.9 * (red[0].mean - min(point.mean for point in red))
    assert result.passes("exact")
    assert result.passes("exact", "margin")
    assert not result.passes("untrained")
    assert not result.passes("exact", against="grad-cam")  # which is the same map here
    # up to the ranking of cells that differ by rounding alone
    assert result.area("grad-cam", "deletion").mean == pytest.approx(result.area("exact", "deletion").mean, rel=1e-3)


def test_scores_are_probability_and_lead_of_the_predicted_class() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]])
    found = faithfulness.measure_scores(logits, 1)
    torch.testing.assert_close(found[:, 0], logits.softmax(1)[:, 1].double())
    assert found[:, 1].tolist() == [1.0, -5.0]


def test_an_interrupted_measurement_resumes(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "folder" / "records.jsonl"
    expected = measure_faithfulness(model, SAMPLES, options(images=6))
    measure = faithfulness._HidingImage.measure
    calls: list[tuple[str, str]] = []

    def interrupted(self: Any, name: str, *rest: Any) -> Any:
        if len(calls) == 8:
            raise KeyboardInterrupt
        calls.append((self.name, name))
        return measure(self, name, *rest)

    monkeypatch.setattr(faithfulness._HidingImage, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_faithfulness(model, SAMPLES, options(images=6), records=file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"settings": "half a li')  # a kill while writing
    monkeypatch.setattr(faithfulness._HidingImage, "measure", measure)
    resumed = measure_faithfulness(model, SAMPLES, options(images=6), records=file)
    assert len(calls) == 8
    assert resumed == expected
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 6 * 5
    monkeypatch.setattr(faithfulness._HidingImage, "measure", None)  # nothing is measured again
    assert measure_faithfulness(model, SAMPLES, options(images=4), records=file).images == expected.images[:4]


def test_records_of_other_settings_or_weights_are_not_mixed_in(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    first = measure_faithfulness(model, SAMPLES, options(images=2, maps=("exact",)), records=file)
    measure_faithfulness(model, SAMPLES, options(images=2, maps=("exact",), hide="blur"), records=file)
    with torch.no_grad():
        model.classifier.weight.mul_(0.5)
    second = measure_faithfulness(model, SAMPLES, options(images=2, maps=("exact",)), records=file)
    assert len(file.read_text(encoding="utf-8").splitlines()) == 6
    assert second.records[0].deletion != first.records[0].deletion
    file.write_text(json.dumps({"settings": second.records[0].settings}) + "\n", encoding="utf-8")
    with pytest.raises(PolycovError, match="Cannot read the records"):
        measure_faithfulness(model, SAMPLES, options(images=2), records=file)


def test_boxes_say_how_much_of_the_evidence_lies_inside(model: Model) -> None:
    boxes = {f"red in cell {i}": Box(CELL * (i % 4), CELL * (i // 4), CELL, CELL) for i in range(16)}
    with torch.no_grad():
        model.classifier.weight[0, 0], model.classifier.bias[0] = 1.0, 5.0
        model.preprocessing = Preprocessing(size=4 * CELL, resize=4 * CELL, mean=(0.45, 0.45, 0.45))
    result = measure_faithfulness(model, SAMPLES, options(maps=("exact", "random")), boxes=boxes)
    inside = result.inside("exact")
    assert inside is not None
    assert inside[0].low == pytest.approx(1)
    assert inside[1].mean == pytest.approx(1 - 1 / 16)
    by_chance = result.inside("random")
    assert by_chance is not None
    assert by_chance[1].low < 0 < by_chance[1].high
    assert measure_faithfulness(model, SAMPLES, options(images=1, maps=("exact",))).inside("exact") is None


@pytest.mark.slow
def test_second_order_maps_find_objects_at_a_known_place(tmp_path: Path) -> None:
    data = write_placed(tmp_path / "data", classes=3, train=15, test=6, side=64)
    small: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "size": 64, "workers": 0}
    torch.manual_seed(0)
    run = train(data, tmp_path / "run", cache=tmp_path / "cache", probe=True, pool="isqrt-cov", channels=16, **small)
    model, maps = load_run(run.folder).model, tuple(name for name in MAPS if name != "exact-runner-up")
    images = read_cub(data)
    assert images is not None
    result = measure_faithfulness(model, images["test"], FaithfulnessOptions(18, maps, 0.25))
    assert result.passes("exact", "margin")
    assert not result.passes("untrained", "margin")
    inside = result.inside("exact")
    assert inside is not None
    assert inside[1].low > 0
    assert len(result.table().rows) == len(maps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 0}, "Expected images to be at least 1, got 0"),
        ({"orders": 0}, "Expected orders to be at least 1"),
        ({"maps": ("exactt",)}, r"Unknown map 'exactt'\..*Did you mean 'exact'"),
        ({"step": 0.0}, "Expected a step above 0"),
        ({"hide": "black"}, "Unknown way to hide regions 'black'"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str, model: Model) -> None:
    with pytest.raises(PolycovError, match=message):
        measure_faithfulness(model, SAMPLES, options(**changes))
