import csv
import re
import shutil
from pathlib import Path

import pytest

from command_line import SMALL, run, succeed
from fake_images import write_classes


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("search")
    write_classes(root / "images", ["ash", "birch"], 3)
    shutil.copy(root / "images" / "ash" / "001.jpg", root / "images" / "birch" / "copy.jpg")
    succeed("embed", "average", root / "images", "-o", root / "features", *SMALL)
    return root


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_image_finds_itself_and_its_copy(embedded: Path, tmp_path: Path) -> None:
    query = embedded / "images" / "ash" / "001.jpg"
    code, out = run("search", embedded / "features", query, "--top", "3")
    assert code == 0
    assert "1.000" in out
    assert "copy.jpg" in re.sub(r"\s|│", "", out)  # long names are folded
    succeed("search", embedded / "features", query, "--top", "3", "-o", tmp_path / "new" / "found.csv")
    found = rows(tmp_path / "new" / "found.csv")
    assert [row["rank"] for row in found] == ["1", "2", "3"]
    assert {Path(row["image"]).name for row in found[:2]} == {"001.jpg", "copy.jpg"}
    assert float(found[2]["cosine"]) < 1
    succeed("search", embedded / "features", query, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 8


def test_duplicates_are_listed(embedded: Path, tmp_path: Path) -> None:
    code, out = run("search", embedded / "features", "--duplicates", "--threshold", "0.99999")
    assert code == 0
    assert "1 group, 1 image too many, cosine of at least 0.99999" in out
    succeed("search", embedded / "features", "--duplicates", "--threshold", "0.99999", "-o", tmp_path / "found.csv")
    assert {Path(row["image"]).name for row in rows(tmp_path / "found.csv")} == {"001.jpg", "copy.jpg"}
    succeed("search", embedded / "features", "--duplicates", "-o", tmp_path / "page.html")
    assert "Group 1" in (tmp_path / "page.html").read_text()
