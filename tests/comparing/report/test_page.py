"""The page in a real browser."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_images import write_data
from polycov.comparing.protocols.classifiers import ProbeProtocol
from polycov.comparing.recommendation import Recommendation
from polycov.comparing.report.gallery import make_gallery
from polycov.comparing.report.page import write_page
from polycov.comparing.statistics import Difference, Point
from polycov.comparing.study import Study
from polycov.data import read_data

METHODS = ("average", "isqrt-cov", "ipccp-ts", "monet-2-ts", "</script><b>evil")


def point(method: str, dim: int | None, size: int, test: float) -> Point:
    kernel = None if dim is None else 10 / math.sqrt(size)
    sizes, metrics = (size, 128, 4 * size, 3), {"unseen recall@1": (test - 0.1, math.nan)}
    accuracy = (test, 0.01, test - 0.02, 0.01)
    return Point(method, dim, *sizes, *accuracy, size / 4000, kernel, metrics=metrics, parameters=1000 + size)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    points = [point("average", None, 320, 0.57), point("isqrt-cov", None, 8256, 0.78)]
    for i, method in enumerate(METHODS[2:]):
        for dim in (512, 1024, 2048):
            size = dim - 16 if method == "monet-2-ts" else dim
            points.append(point(method, dim, size, 0.6 + 0.02 * i + 0.03 * math.log2(dim / 512)))
    data = read_data(str(write_data(folder / "trees")))
    predictions = np.array(data["test"].labels)
    predictions[0] = 1
    gallery = make_gallery(data, predictions.tolist(), [2.0] + [0.1] * (len(predictions) - 1))
    for entry in (*gallery["hardest"], gallery["pairs"][0]["one"]):
        entry["explanation"] = "test-0"
    gap = Difference(-0.1, -0.12, -0.08, 0.001, -0.11)
    codes = {"float32": 8192, "int8": 2052, "product": 64}
    stored = [
        replace(points[-1], method="ipccp-ts, in fewer bytes", code=code, bytes=size, val=math.nan, test=0.6)
        for code, size in codes.items()
    ]
    study = Study(
        "trees",
        3,
        {"train": 24, "val": 6, "test": 12},
        ProbeProtocol(),
        0.5,
        [],
        points,
        {(p.method, p.dim): gap for p in points if p.method != "isqrt-cov"},
        Recommendation(points[1], points[-1], gap, 6, 3, 11),
        stored,
        {"of": "ipccp-ts, 512 dimensions", **gallery},
        [("data", "trees"), ("command", "polycov compare trees")],
    )
    write_page(folder / "report.html", [study], ["explanations.html"])
    write_page(folder / "alone.html", [study])
    return folder / "report.html"


def opened(browser: Any, page: Path, width: int = 1200) -> Any:
    browser.set_window_size(width, 900)
    browser.get(f"file://{page}")
    return browser


def shown_methods(browser: Any, chart: str = "accuracy") -> list[str]:
    script = f"return [...document.querySelectorAll('[data-chart={chart}] g')].map(g => g.dataset.method)"
    methods: list[str] = browser.execute_script(script)
    return methods


def test_the_page_needs_no_other_file_and_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    addresses = set(re.findall(r"(?:src|href)=\"(?!data:)([^\"]*)", text))
    assert addresses == {"explanations.html#test-0"}  # the only link, relative, and only where that page exists
    assert not re.search(r"(src|href)=\"(?!data:)", (page.parent / "alone.html").read_text(encoding="utf-8"))
    assert "@import" not in text
    assert "fetch(" not in text
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address


def test_there_is_no_script_error_and_every_method_is_in_the_chart(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert browser.get_log("browser") == []
    assert shown_methods(browser) == list(METHODS)
    assert browser.find_elements("css selector", "b") == []  # names are not markup
    assert len(browser.find_elements("css selector", "[data-chart=accuracy] [data-point]")) == 11


def test_a_method_can_be_hidden_and_shown(browser: Any, page: Path) -> None:
    opened(browser, page)
    button = next(b for b in browser.find_elements("css selector", ".legend button") if b.text == "ipccp-ts")
    button.click()
    assert shown_methods(browser) == [method for method in METHODS if method != "ipccp-ts"]
    assert "ipccp-ts" not in shown_methods(browser, "kernel")
    rows = [row for row in browser.find_elements("css selector", "tbody tr") if row.is_displayed()]
    assert len(rows) == 8
    button.click()
    assert shown_methods(browser) == list(METHODS)


def test_the_axis_can_be_dimensions_bytes_or_time(browser: Any, page: Path) -> None:
    opened(browser, page)
    for name, label in (("bytes", "bytes per image"), ("time", "pooling time"), ("dimensions", "dimensions")):
        browser.find_element("css selector", f"[data-axis={name}]").click()
        texts = [node.text for node in browser.find_elements("css selector", "[data-chart=accuracy] text")]
        assert any(text.startswith(label) for text in texts)
        assert shown_methods(browser) == list(METHODS)
    assert {"320", "512", "1024", "2048", "8256"} < set(texts)
    assert "496" not in texts  # of one method, would overlap the 512 of the others


def test_the_chart_shows_further_metrics(browser: Any, page: Path) -> None:
    opened(browser, page)
    label = "return document.querySelector('[data-chart=accuracy] svg').getAttribute('aria-label')"
    assert browser.execute_script(label) == "test accuracy against dimensions"
    title = "return document.querySelector('[data-point=\"ipccp-ts 1024\"] title').textContent"
    before = browser.execute_script(title)
    browser.find_element("css selector", "[data-score='unseen recall@1']").click()
    assert browser.execute_script(label) == "unseen recall@1 against dimensions"
    assert (before, browser.execute_script(title)) == tuple(f"ipccp-ts, 1024 dimensions: {v} %" for v in (63.0, 53.0))
    browser.find_element("css selector", "[data-axis=bytes]").click()  # the other choice stays
    assert browser.execute_script(label) == "unseen recall@1 against bytes per image (float32)"
    heads = [head.text for head in browser.find_elements("css selector", "th button")]
    assert "unseen recall@1 %" in heads
    row = browser.find_element("css selector", "tbody tr").text
    assert "47.0" in row
    assert row.endswith("1,320")  # parameters


def test_the_recommended_feature_is_shown_in_fewer_bytes(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert shown_methods(browser, "stored") == [*METHODS, "ipccp-ts, in fewer bytes"]
    assert len(browser.find_elements("css selector", "[data-chart=stored] [data-point^='ipccp-ts, in']")) == 3
    texts = [node.text for node in browser.find_elements("css selector", "[data-chart=stored] text")]
    assert "64 B" in texts
    assert "60.0% in 64 bytes (product)" in browser.find_element("css selector", "main").text


def test_tables_sort_both_ways_as_numbers(browser: Any, page: Path) -> None:
    opened(browser, page)
    head = next(b for b in browser.find_elements("css selector", "th button") if b.text == "dimensions")

    def column() -> list[int]:
        return [int(cell.text) for cell in browser.find_elements("css selector", "tbody td:nth-child(2)")]

    head.click()
    assert column() == sorted(column())
    assert column()[0] == 320
    head.click()
    assert column() == sorted(column(), reverse=True)
    assert column()[0] == 8256


def test_a_point_tells_its_numbers(browser: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, page)
    spot = browser.find_element("css selector", "[data-point='ipccp-ts 1024']")
    ActionChains(browser).move_to_element(spot).perform()
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed()
    assert "ipccp-ts, 1024 dimensions" in tip.text
    assert "test 63.0 ± 1.0 %" in tip.text


@pytest.mark.parametrize("width", [500, 1200])  # narrower windows are not available; the layout changes at 560
def test_it_fits_a_phone(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    inner, outer = (browser.execute_script(f"return document.documentElement.{n}Width") for n in ("scroll", "client"))
    assert inner <= outer


def test_images_are_shown_and_wrong_ones_say_what_they_are(browser: Any, page: Path) -> None:
    opened(browser, page)
    broken = "return [...document.images].filter(i => i.loading !== 'lazy' && !i.naturalWidth).length"
    assert browser.execute_script(broken) == 0
    wrong, *_ = browser.find_elements("css selector", ".gallery .wrong")
    assert "The hardest mistakes" in browser.find_element("css selector", "main").text
    assert "Predictions of ipccp-ts, 512 dimensions" in browser.find_element("css selector", "main").text
    assert "birch" in wrong.text
    assert "it is ash" in wrong.text
    assert len(browser.find_elements("css selector", ".pair")) == 1


def test_mistakes_link_to_their_explanations(browser: Any, page: Path) -> None:
    opened(browser, page)
    links = browser.find_elements("css selector", "a")
    assert [link.get_attribute("aria-label") for link in links] == ["why birch", "why birch"]  # in a pair, and alone
    assert all(link.text == "why?" for link in links)
