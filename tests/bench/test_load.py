import math
from pathlib import Path

import pytest

from polycov.bench.load import link_images, load
from polycov.bench.many_images import write_images
from polycov.data.anywhere import Anywhere, iterate_items
from polycov.data.images import Samples
from polycov.data.read import read_data


def test_images_and_links_are_where_they_are_looked_for(tmp_path: Path) -> None:
    write_images(tmp_path / "written", 3)
    write_images(tmp_path / "shards", 3, "tar")
    contents = []
    for folder in ("written", "shards"):
        items = list(iterate_items([tmp_path / folder]))
        samples = Samples(Anywhere(), items, [0] * len(items))
        contents.append([samples.image(i).tobytes() for i in range(len(items))])
    assert contents[0] == contents[1]
    assert len(set(contents[0])) == 3
    link_images(tmp_path / "linked", 20, 4)
    data = read_data(tmp_path / "linked")
    assert len(data.classes) == 4
    assert len(data.all_samples()) == 20


@pytest.mark.slow
def test_every_row_has_a_rate_and_a_peak() -> None:
    rows = list(load(0.001, 2000, ("tar",)))
    assert [row["what"] for row in rows][:2] == ["embed images, tar", "list names"]
    assert rows[0]["count"] == 2000
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert all(row["rate"] > 0 and math.isfinite(row["rate"]) and row["mib_at_the_end"] > 0 for row in rows)
