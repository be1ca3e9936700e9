"""The page of explanations, its numbers, and the page in a real browser."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycov
from polycov.errors import PolycovError
from polycov.explaining.explain import explain
from polycov.explaining.explained import ExplainedImage, explain_images
from polycov.explaining.page import pack, write_explanation_page
from polycov.explaining.training_images import TrainingImages
from polycov.training.run_folder import load_run
from polycov.training.train import train

EVIL = "</script><b>evil.jpg"
CONTRASTS = """
const shade = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => {
    v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const card = shade(getComputedStyle(document.querySelector("article")).backgroundColor);
const texts = [...document.querySelectorAll("p, td, th, .name, button, .caption, summary, strong, .low, .high")];
return texts.filter((node) => node.closest("article") && node.offsetParent).map((node) => {
  const ink = shade(getComputedStyle(node).color);
  return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
});
"""


@pytest.fixture(scope="module")
def items(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> list[ExplainedImage]:
    folder = tmp_path_factory.mktemp("run")
    small: dict[str, Any] = {
        "backbone": "test_resnet",
        "weights": "none",
        "stage": 2,
        "size": 64,
        "workers": 0,
        "channels": 8,
    }
    train(trees, folder / "run", cache=folder / "cache", probe=True, pool="isqrt-cov", **small)
    run = load_run(folder / "run")
    training = TrainingImages.open(run.model, run.config, folder / "cache", workers=0)
    files = [trees / "test" / "ash" / "006.jpg", trees / "test" / "birch" / "007.jpg"]
    first, second = explain_images(run.model, files, names=["ash.jpg", EVIL], training=training, neighbours=3)
    return [replace(first, truth="ash", anchor="test 1"), replace(second, truth="ash")]


@pytest.fixture(scope="module")
def page(items: list[ExplainedImage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_explanation_page(tmp_path_factory.mktemp("page") / "new" / "page.html", items)


def data_of(page: Path) -> Any:
    (text,) = re.findall(r'type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    return json.loads(text)


def unpacked(packed: dict[str, Any]) -> Any:
    codes = np.frombuffer(base64.b64decode(packed["bytes"]), np.int8).astype(float)
    return packed["scale"] * codes * np.abs(codes) / 127**2


def test_the_page_needs_no_other_file_and_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:src|href)=\"(?!data:)([^\"]*)", text)) == {"#test-1", "#image-2"}
    assert "@import" not in text
    assert "fetch(" not in text
    assert not re.findall(r"https?://[^\s\"']+", text)
    assert "<b>evil" not in text


def test_numbers_of_the_page_are_those_of_the_explanation(page: Path, items: list[ExplainedImage]) -> None:
    for shown, item in zip(data_of(page), items, strict=True):
        assert shown["map"] == shown["grid"] == [8, 8]
        for view, explanation in zip(shown["views"], item.views, strict=True):
            np.testing.assert_allclose(view["regions"], explanation.regions.flatten(), rtol=1e-3, atol=1e-6)
        row, column = np.triu_indices(64)
        for i in (0, 2):
            expected = item.views[i].pairs.numpy()[row, column]
            error = np.abs(unpacked(shown["views"][i]["pairs"]) - expected).max()
            assert error < 0.01 * np.abs(expected).max()
        for near, neighbour in zip(shown["neighbours"], item.neighbours, strict=True):
            assert unpacked(near["pairs"]).sum() == pytest.approx(neighbour.similarity, abs=0.02)


def test_large_maps_are_summed_into_regions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = polycov.create_model("test_resnet", pool="isqrt-cov", num_classes=3, channels=4, weights="none", stage=1)
    (found,) = explain(model.eval(), torch.randn(1, 3, 128, 128), against="runner-up")
    assert found.regions.shape == (32, 32)
    (shown,) = data_of(write_explanation_page(tmp_path / "page.html", [found]))
    assert shown["map"] == [32, 32]
    assert shown["grid"] == [16, 16]
    values, pairs = unpacked(shown["views"][0]["pairs"]), np.zeros((256, 256))
    pairs[np.triu_indices(256)] = values
    pairs += np.triu(pairs, 1).T
    block = found.regions[:2, 2:4]  # the region in the first row and second column
    assert pairs[1].sum() == pytest.approx(float(block.sum()), abs=0.05 * float(np.abs(pairs[1]).sum()))


def test_zeros_are_packed() -> None:
    assert unpacked(pack(torch.zeros(3))).tolist() == [0, 0, 0]


def test_a_page_needs_explanations(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="Expected explanations"):
        write_explanation_page(tmp_path / "page.html", [])


def opened(browser: Any, page: Path, width: int = 1200, scheme: str = "light") -> Any:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.set_window_size(width, 1000)
    browser.get(f"file://{page}")
    return browser


def shown(browser: Any) -> list[float]:
    """The values of the map on the first image."""
    return [
        float(value)
        for value in browser.find_element("css selector", ".stage.main").get_attribute("data-shown").split()
    ]


def point_at(browser: Any, row: int, column: int, click: bool = False) -> None:
    from selenium.webdriver import ActionChains

    stage = browser.find_element("css selector", ".stage.main")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", stage)
    width, height = stage.size["width"], stage.size["height"]
    x, y = round(((column + 0.5) / 8 - 0.5) * width), round(((row + 0.5) / 8 - 0.5) * height)
    action = ActionChains(browser).move_to_element_with_offset(stage, x, y)
    (action.click() if click else action).perform()


def test_without_pairs_the_map_stays_when_a_region_is_chosen(browser: Any, tmp_path: Path) -> None:
    model = polycov.create_model("test_resnet", pool="average", num_classes=3, weights="none", stage=2).eval()
    found = explain(model, torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)), against="runner-up")
    opened(browser, write_explanation_page(tmp_path / "page.html", found))
    whole = shown(browser)
    assert len(whole) == 64
    point_at(browser, 2, 3)
    assert shown(browser) == whole
    assert "takes regions one at a time" in browser.find_element("css selector", ".readout").text
    assert browser.find_element("css selector", ".stage.main .cell").is_displayed()


def test_there_is_no_script_error_and_names_are_not_markup(
    browser: Any, page: Path, items: list[ExplainedImage]
) -> None:
    opened(browser, page)
    assert browser.get_log("browser") == []
    assert browser.find_elements("css selector", "b") == []
    text = browser.find_element("css selector", "main").text
    assert EVIL in text
    assert items[0].views[0].question in text
    assert items[0].views[0].note in text
    assert browser.execute_script("return [...document.images].filter(i => !i.naturalWidth).length") == 0
    assert browser.execute_script("return [...document.images].filter(i => i.alt === null).length") == 0
    np.testing.assert_allclose(shown(browser), items[0].views[0].regions.flatten(), rtol=0.01, atol=1e-6)


def test_every_map_is_described_in_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    described = re.findall(r'aria-describedby="([^"]*)"', text)
    assert described == ["summary-test-1", "summary-image-2"]
    assert set(described) < set(ids)
    assert text.count("A map of 8 by 8 regions. Most for: row ") == 6


def test_hovering_a_region_shows_what_it_works_with(browser: Any, page: Path, items: list[ExplainedImage]) -> None:
    opened(browser, page)
    whole = shown(browser)
    pixels = "return document.querySelector('canvas').toDataURL()"
    before = browser.execute_script(pixels)
    point_at(browser, 2, 3)
    expected = items[0].views[0].partners(2, 3).flatten().numpy()
    np.testing.assert_allclose(shown(browser), expected, atol=0.02 * float(items[0].views[0].pairs.abs().max()))
    assert browser.execute_script(pixels) != before
    assert "row 3, column 4" in browser.find_element("css selector", ".readout").text
    point_at(browser, 5, 1)
    assert "row 6, column 2" in browser.find_element("css selector", ".readout").text
    from selenium.webdriver import ActionChains

    ActionChains(browser).move_to_element(browser.find_element("css selector", ".brand")).perform()
    assert shown(browser) == whole


def test_a_click_or_tap_keeps_a_region_until_the_next(browser: Any, page: Path) -> None:
    opened(browser, page)
    whole = shown(browser)
    point_at(browser, 2, 3, click=True)
    kept = shown(browser)
    assert kept != whole
    point_at(browser, 4, 4)
    assert shown(browser) == kept
    point_at(browser, 2, 3, click=True)
    point_at(browser, 4, 4, click=True)
    assert "row 5, column 5" in browser.find_element("css selector", ".readout").text


def test_the_map_works_with_the_keyboard(browser: Any, page: Path, items: list[ExplainedImage]) -> None:
    from selenium.webdriver import Keys

    opened(browser, page)
    whole = shown(browser)
    stage = browser.find_element("css selector", ".stage.main")
    stage.send_keys(Keys.ARROW_RIGHT)  # starts at the strongest region
    strongest = int(items[0].views[0].regions.abs().argmax())
    readout = browser.find_element("css selector", ".readout")
    assert f"row {strongest // 8 + 1}, column {strongest % 8 + 1}" in readout.text
    for _ in range(9):
        stage.send_keys(Keys.ARROW_UP)
    for _ in range(9):
        stage.send_keys(Keys.ARROW_LEFT)
    assert "row 1, column 1" in readout.text
    stage.send_keys(Keys.ESCAPE)
    assert shown(browser) == whole


def test_every_view_has_its_map_and_its_sum(browser: Any, page: Path, items: list[ExplainedImage]) -> None:
    opened(browser, page)
    article = browser.find_element("css selector", "article")
    for button, view in zip(article.find_elements("css selector", ".tabs button"), items[0].views, strict=True):
        button.click()
        np.testing.assert_allclose(shown(browser), view.regions.flatten(), rtol=0.01, atol=1e-6)
        (table,) = [t for t in article.find_elements("css selector", ".sum") if t.is_displayed()]
        numbers = [float(cell.text.replace("−", "-")) for cell in table.find_elements("css selector", "td")]
        assert sum(numbers[:3]) == pytest.approx(numbers[3], abs=0.03)
        assert numbers[3] == pytest.approx(view.score, abs=0.01)
        point_at(browser, 2, 3)
        size = float(items[0].views[1].pairs.abs().max() + items[0].views[2].pairs.abs().max())
        np.testing.assert_allclose(shown(browser), view.partners(2, 3).flatten(), atol=0.02 * size)


def test_a_training_image_shows_what_it_shares(browser: Any, page: Path, items: list[ExplainedImage]) -> None:
    opened(browser, page)
    article = browser.find_element("css selector", "article")
    buttons = article.find_elements("css selector", ".neighbour")
    assert [button.text.splitlines()[0] for button in buttons] == [near.label for near in items[0].neighbours]
    buttons[1].click()
    near = items[0].neighbours[1]
    np.testing.assert_allclose(shown(browser), near.regions.flatten(), atol=0.05 * float(near.regions.abs().max()))
    assert buttons[1].get_attribute("aria-pressed") == "true"
    cell = buttons[1].find_element("css selector", ".cell")
    assert cell.is_displayed()
    assert browser.execute_script("return arguments[0].style.top", cell) == f"{100 * near.strongest[1][0] / 8:g}%"
    buttons[1].click()
    assert buttons[1].get_attribute("aria-pressed") == "false"


def test_the_opacity_can_be_changed(browser: Any, page: Path) -> None:
    from selenium.webdriver import Keys

    opened(browser, page)
    slider = browser.find_element("css selector", "input[type=range]")
    slider.send_keys(Keys.HOME)
    painted = (
        "const c = document.querySelector('canvas'); "
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0)"
    )
    assert browser.execute_script(painted) is False
    slider.send_keys(Keys.END)
    assert browser.execute_script(painted) is True


@pytest.fixture
def phone(browser: Any) -> Iterator[Any]:
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    yield browser
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def tap(phone: Any, spot: dict[str, float]) -> None:
    phone.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [spot]})
    phone.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_it_fits_a_phone_where_a_tap_chooses_a_region(phone: Any, page: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    phone.get(f"file://{page}")
    inner, outer = (phone.execute_script(f"return document.documentElement.{n}Width") for n in ("scroll", "client"))
    assert inner <= outer == 360
    whole = shown(phone)
    stage = phone.find_element("css selector", ".stage.main")
    assert stage.size["width"] > 280
    phone.execute_script("arguments[0].scrollIntoView({block: 'center'})", stage)
    box = phone.execute_script("return arguments[0].getBoundingClientRect().toJSON()", stage)
    spot = {"x": box["left"] + 3.5 / 8 * box["width"], "y": box["top"] + 2.5 / 8 * box["height"]}
    tap(phone, spot)
    WebDriverWait(phone, 10).until(lambda _: shown(phone) != whole)
    assert "row 3, column 4" in phone.find_element("css selector", ".readout").text
    tap(phone, spot)
    WebDriverWait(phone, 10).until(lambda _: shown(phone) == whole)


def test_it_fits_a_wide_window(browser: Any, page: Path) -> None:
    opened(browser, page, 1200)
    inner, outer = (browser.execute_script(f"return document.documentElement.{n}Width") for n in ("scroll", "client"))
    assert inner <= outer
    image, facts = (browser.find_element("css selector", name).rect for name in (".look", ".facts"))
    assert image["x"] + image["width"] < facts["x"]  # side by side


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_by_day_and_by_night(browser: Any, page: Path, scheme: str) -> None:
    opened(browser, page, scheme=scheme)
    contrasts = browser.execute_script(CONTRASTS)
    assert len(contrasts) > 20
    assert min(contrasts) > 4.5
