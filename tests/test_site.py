"""The documentation site builds without a warning, says what the code says, and works in a browser."""

import contextlib
import html
import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import polycov
from once import once
from polycov.commands.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it; a broken link or a page that nothing leads to is an error."""
    pytest.importorskip("sphinx")

    def make(folder: Path) -> None:
        words = ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", "docs", str(folder)]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    return once(tmp_path_factory, "site", make)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served, on this machine only."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def text_of(page: Path) -> str:
    """What a reader sees."""
    content = page.read_text(encoding="utf-8").partition('<article role="main"')[2].partition("</article>")[0]
    return html.unescape(re.sub(r"<[^>]+>", "", content))


def help_of(command: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        main([command, "--help"])
    return shown.getvalue()


def test_every_option_of_every_command_has_its_place(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r"<h2>polycov (\w+)<(.*?)(?=<h2>|</article>)", page, re.S))
    assert set(sections) == set(COMMANDS)
    everything: list[str] = []
    for command, section in sections.items():
        flags = set(re.findall(r"^[│ ] {1,2}(?:-o \w+, )?(--[a-z][a-z0-9-]*)", help_of(command), re.M)) - {"--help"}
        everything += flags
        for flag in flags:
            assert flag in section or flag.replace("--no-", "--") in section, (command, flag)
    assert len(everything) > 100


def test_every_public_name_stage_and_method_has_its_place(site: Path) -> None:
    names = {*re.findall(r'id="polycov\.([\w.]+)"', (site / "reference" / "api.html").read_text(encoding="utf-8"))}
    assert set(polycov.__all__) - {"functional"} <= names
    functions = (site / "reference" / "functional.html").read_text(encoding="utf-8")
    assert all(f'id="polycov.functional.{name}"' in functions for name in polycov.functional.__all__)
    stages = text_of(site / "reference" / "stages.html")
    assert all(
        stage.name in stages and example in stages for stage in polycov.list_stages() for example in stage.examples
    )


def test_no_page_takes_the_place_of_one_that_sphinx_writes(site: Path) -> None:
    """A page called search.md would be replaced by the page that searches, without a warning."""
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 30
    for page in pages:
        assert str(page) not in ("search", "genindex", "py-modindex")
        first = text_of(site / f"{page}.html").strip().partition("\n")[0]
        assert first, page


def test_pages_need_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(\w+:[^"]*)"', page.read_text("utf-8"))
        assert [address for address in loaded if not address.startswith("data:")] == [], page


def test_figures_are_on_a_light_ground(site: Path) -> None:
    """They are drawn in black, and would be unreadable on a dark page."""
    assert re.search(r"article img \{ background: #fff", (site / "_static" / "site.css").read_text(encoding="utf-8"))
    assert "site.css" in (site / "results.html").read_text(encoding="utf-8")


def test_search_finds_a_page(address: str, browser: Any) -> None:
    browser.get(f"{address}/search.html?q=lyapunov")
    script = "return [...document.querySelectorAll('#search-results li a')].map((link) => link.href)"
    until = time.monotonic() + 20
    while not any("numerics.html" in address for address in browser.execute_script(script)):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("page", ["index", "choose", "comparison", "paper", "reference/api", "reference/commands"])
def test_a_phone_shows_whole_pages(address: str, browser: Any, page: str) -> None:
    """Wide tables and code scroll by themselves, not the page."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{address}/{page}.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("name", ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"])
def test_links_of_the_documents_at_the_top_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / f"{name}.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
