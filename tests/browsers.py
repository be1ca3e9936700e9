"""A real browser for tests of pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)


def open_browser(*flags: str) -> Iterator[Any]:
    """Yields Chromium with its console recorded, and closes it; skips the test where there is none."""
    if BROWSER is None or DRIVER is None:
        pytest.skip("needs Chromium and ChromeDriver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS.split(), *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()
