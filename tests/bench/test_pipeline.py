import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from polycov.bench.photographs import link_images
from polycov.bench.pipeline import DRAFT, EMBED, FEATURES, FIRST, LIMIT, PLAIN, WHOLE, Pipeline, pipeline
from polycov.bench.speed import Speed
from polycov.errors import PolycovError


@pytest.mark.slow
def test_every_part_and_the_whole_have_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = 2 * FIRST + 8
    monkeypatch.setattr("polycov.bench.photographs.LEAST", images)
    link_images(None, tmp_path, images)
    monkeypatch.setattr(Pipeline, "script", lambda self: Speed(1.0, 1.0))  # it loads pretrained weights
    settings = Pipeline(tmp_path, images, "torch", size=64, batch=2, workers=0, method="average")
    with torch.inference_mode():
        rows = {row["part"]: row for row in pipeline(settings, 1)}
    assert 0 < rows[DRAFT]["distance"] < 0.5
    assert {
        WHOLE,
        DRAFT,
        "read",
        "decode",
        "transform",
        "pool",
        "classifier",
        EMBED,
        FEATURES,
        PLAIN,
        *LIMIT.values(),
    } == set(rows)
    for row in rows.values():
        assert row["lower_quartile"] <= row["images_per_second"] <= row["upper_quartile"]
        assert math.isfinite(row["images_per_second"])
    assert rows[EMBED]["of_the_limit"] > 0
    assert rows[EMBED]["of_the_limit_by_cpu"] > 0
    assert rows["read"]["of_the_limit"] is None


def test_given_images_are_linked_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolycovError, match="Expected at least 128 images, got --images 3"):
        link_images(None, tmp_path, 3)
    monkeypatch.setattr("polycov.bench.photographs.LEAST", 1)
    source = tmp_path / "source"
    source.mkdir()
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(source / f"{i}.png")
    link_images(str(source), tmp_path / "linked", 3)
    linked = sorted((tmp_path / "linked").rglob("*.*"), key=lambda path: path.name)
    assert [path.resolve().name for path in linked] == ["0.png", "2.png", "4.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolycovError, match="There are no images"):
        link_images(str(tmp_path / "empty"), tmp_path / "other", 3)
