import csv
import os
import sys
from pathlib import Path

import pytest

from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.tables import Table

TABLE = Table(
    ("name", "accuracy", "images"),
    [("a, b", 0.123456789, 3), ('"quoted"', 1e-9, None), ("<b>&", 50.0, 10_000_000)],
    "results & <more>",
)


def test_csv_has_six_digits_and_quotes_what_needs_it(tmp_path: Path) -> None:
    TABLE.to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes().decode() == (
        'name,accuracy,images\n"a, b",0.123457,3\n"""quoted""",1e-09,\n<b>&,50,10000000\n'
    )
    assert os.listdir(tmp_path) == ["a.csv"]


def test_csv_keeps_names_that_are_not_utf8(tmp_path: Path) -> None:
    Table(("name",), [(os.fsdecode(b"caf\xe9"),)]).to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == b"name\ncaf\xe9\n"


def test_html_is_escaped_and_rounded() -> None:
    assert TABLE._repr_html_() == (
        "<table><caption>results &amp; &lt;more&gt;</caption>"
        "<thead><tr><th>name</th><th>accuracy</th><th>images</th></tr></thead><tbody>"
        "<tr><td>a, b</td><td>0.1235</td><td>3</td></tr>"
        "<tr><td>&quot;quoted&quot;</td><td>1e-09</td><td></td></tr>"
        "<tr><td>&lt;b&gt;&amp;</td><td>50</td><td>10000000</td></tr>"
        "</tbody></table>"
    )


def test_html_without_a_title_or_valid_utf8() -> None:
    html = Table(("a<",), [(os.fsdecode(b"caf\xe9"),)])._repr_html_()
    assert html == "<table><thead><tr><th>a&lt;</th></tr></thead><tbody><tr><td>caf\ufffd</td></tr></tbody></table>"


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["name", "accuracy", "images"]
    assert frame["accuracy"].tolist() == [0.123456789, 1e-9, 50.0]
    assert frame["images"].isna().tolist() == [False, True, False]
    assert list(Table(("a", "b"), []).to_pandas().columns) == ["a", "b"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"^A DataFrame needs pandas\. .*pip install pandas$"):
        TABLE.to_pandas()


@pytest.mark.parametrize("row", [("a",), ("a", 1.0, 2, 3)])
def test_rows_of_another_length_are_refused(row: tuple[str | float, ...]) -> None:
    with pytest.raises(PolycovError, match=rf"^Expected rows of 3 cells, got {len(row)}: \['a'"):
        Table(("name", "accuracy", "images"), [("b", 0.5, 3), row])


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    cells = ("=1+1", "+cmd", "@SUM(1)", "-2+3", " =1", "\t=1", "-1.5", "+3", "a=b")
    Table(cells, [cells, (-1.5, 2, None, "", "-", "", "", "", "")]).to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        head, first, second = csv.reader(file)
    assert head == first == ["'=1+1", "'+cmd", "'@SUM(1)", "'-2+3", "' =1", "'\t=1", "-1.5", "+3", "a=b"]
    assert second == ["-1.5", "2", "", "", "'-", "", "", "", ""]
