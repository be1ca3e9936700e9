import math
from pathlib import Path

import pytest

from polycov.bench.load import link_images, load, write_images
from polycov.data.read import read_data


def test_images_and_links_are_where_they_are_looked_for(tmp_path: Path) -> None:
    write_images(tmp_path / "written", 3)
    contents = {path.read_bytes() for path in (tmp_path / "written").rglob("*.jpg")}
    assert len(contents) == 3
    link_images(tmp_path / "linked", 20, 4)
    data = read_data(tmp_path / "linked")
    assert len(data.classes) == 4
    assert len(data.all_samples()) == 20


@pytest.mark.slow
def test_every_row_has_a_rate_and_a_peak() -> None:
    rows = list(load(0.001))
    assert [row["what"] for row in rows][:2] == ["embed images", "list names"]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert all(row["rate"] > 0 and math.isfinite(row["rate"]) and row["mib_at_the_end"] > 0 for row in rows)
