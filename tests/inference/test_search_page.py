import re
from pathlib import Path

import pytest

from archives import jpeg, write
from polycov.inference import search_page
from polycov.inference.search_page import Picture, Section, write_search_page


def test_the_page_needs_no_other_file_and_escapes_names(tmp_path: Path) -> None:
    image = write(tmp_path / "a.jpg", jpeg(0, 0))
    names = ["<script>alert(1)</script>.jpg", "b\udcff.jpg", "gone.jpg"]
    pictures = [
        Picture(names[0], "query", str(image)),
        Picture(names[1], "0.9", str(image)),
        Picture(names[2], "0.8", None),
    ]
    pictures.append(Picture("missing.jpg", "0.7", str(tmp_path / "missing.jpg")))
    path = write_search_page(tmp_path / "new" / "page.html", "Nearest <b>", "lead & more", [Section("one", pictures)])
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<img") == 2
    assert text.count("cannot be read any more") == 2
    assert all(url.startswith("data:") for url in re.findall(r"(?:src|href)=\"([^\"]*)\"", text))
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_page, "MOST", 5)
    sections = [Section(str(i), [Picture("x", "1", None)] * 2) for i in range(4)]
    text = write_search_page(tmp_path / "page.html", "", "", sections).read_text()
    assert text.count("<section>") == 2
    assert "2 more are in the table" in text
    assert "Nothing was found" in write_search_page(tmp_path / "page.html", "", "", []).read_text()
