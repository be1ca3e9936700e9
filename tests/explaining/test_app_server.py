"""The app as its user meets it: the command in a process of its own, and a real browser."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from browsers import open_browser
from polycov.errors import PolycovError
from polycov.explaining.app_server import Guard, is_loopback, serve


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "localhost.example.com", "example.com", ""])
def test_anything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


def test_the_guard_refuses_other_hosts_and_routes_that_fetch_from_the_web() -> None:
    local, public = Guard(None, local=True), Guard(None, local=False)
    assert local.allows("/", "127.0.0.1:7860")
    assert local.allows("/gradio_api/file=/tmp/gradio/image.jpg", "localhost:7860")
    assert local.allows("/", "[::1]:7860")
    assert not local.allows("/", "evil.example.com:7860")
    assert not local.allows("/", "")
    assert public.allows("/", "me-birds.hf.space")
    for path in (
        "file=http://example.com",
        "file=HTTPS://example.com",
        "proxy=http://example.com",
        "process_recording",
    ):
        assert not public.allows(f"/gradio_api/{path}", "me-birds.hf.space")


@pytest.mark.parametrize("options", [{"port": 0}, {"port": 70000}, {"max_upload_mb": 0}, {"max_upload_mb": 1e9}])
def test_numbers_out_of_range_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(PolycovError, match=f"Expected {next(iter(options))} from"):
        serve(None, **options)


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int
    uploads: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Sends a path as it is; a URL library would tidy it up first."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def ask(self, image: dict[str, Any], session: str) -> str:
        """Joins the queue as the page does, and returns all that comes back."""
        request = {"data": [image, "predicted", "nothing"], "fn_index": 0, "session_hash": session}
        headers = {"Content-Type": "application/json"}
        status, text = self.request("/gradio_api/queue/join", "POST", json.dumps(request).encode(), headers)
        assert status == 200, text
        return self.request(f"/gradio_api/queue/data?session_hash={session}")[1]


@pytest.fixture(scope="module")
def server(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uploads = tmp_path_factory.mktemp("uploads")
    environment = os.environ | {
        "POLYCOV_CACHE": str(finished.parent / "cache"),
        "TMPDIR": str(uploads),
        "GRADIO_SHARE": "True",  # must make no difference
        "GRADIO_ALLOWED_PATHS": "/etc",
    }
    command = [sys.executable, "-m", "polycov", "app", str(finished), str(finished), "--port", str(port)]
    options = ["--no-open", "--max-upload-mb", "0.5", "--device", "cpu"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            lines = []
            for line in process.stdout or ():
                lines.append(line)
                if line.startswith("app: "):
                    break
            assert process.poll() is None, "".join(lines)
            yield Server(process, port, uploads)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    for driver in open_browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"):
        driver.set_window_size(1200, 900)
        yield driver


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.1)
    return result


def results(browser: Any) -> str:
    return str(browser.execute_script("return document.querySelector('#results')?.innerText ?? ''"))


def upload(browser: Any, file: Path) -> None:
    find = lambda: browser.find_elements("css selector", "#image input[type=file]")  # noqa: E731
    until(find, "place to upload")[0].send_keys(str(file))


def choose(browser: Any, box: str, name: str) -> None:
    """Opens a list and takes an entry; again if the page was drawn anew in between, as a person would."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver import Keys

    def chosen() -> bool:
        field = browser.find_element("css selector", f"#{box} input")
        if str(field.get_attribute("value")).endswith(name):
            return True
        field.click()
        time.sleep(0.2)
        options = browser.find_elements("css selector", "[role=option]")
        with suppress(WebDriverException):  # an option that has gone
            for option in options:
                if option.is_displayed() and option.text.strip().endswith(name):
                    option.click()
                    return False  # looked at once more
        browser.find_element("css selector", "body").send_keys(Keys.ESCAPE)
        return False

    until(chosen, f"entry {name!r} in {box}")


@pytest.fixture
def page(browser: Any, server: Server) -> Any:
    browser.get(server.url)
    until(lambda: "on test images" in results(browser), "page")
    return browser


@pytest.mark.slow
def test_images_are_classified_and_explained_and_a_broken_one_is_a_sentence(
    page: Any, server: Server, trees: Path, tmp_path: Path
) -> None:
    good = sorted((trees / "test" / "ash").glob("*.jpg"))
    upload(page, good[0])
    until(lambda: "Why " in results(page), "answer")
    assert page.execute_script("return document.querySelectorAll('#results .pc-panel').length") == 2
    assert page.execute_script("return document.querySelectorAll('#results .pc-classes li').length") == 6
    assert page.execute_script("return document.querySelectorAll('#results .pc-neighbours figure').length") == 12
    broken = "return [...document.querySelectorAll('#results img')].filter(i => !i.naturalWidth).length"
    assert page.execute_script(broken) == 0

    choose(page, "explain", "cedar")
    until(lambda: "Why cedar?" in results(page), "other class")
    choose(page, "against", "birch")
    until(lambda: "Why cedar and not birch?" in results(page), "class against class")

    (tmp_path / "broken.jpg").write_bytes(good[0].read_bytes()[:200])
    (tmp_path / "text.jpg").write_text("not an image")
    upload(page, tmp_path / "broken.jpg")
    until(lambda: results(page).startswith("This file cannot be read: Truncated"), "sentence")
    upload(page, tmp_path / "text.jpg")
    until(lambda: results(page).startswith("This file cannot be read: it is not an image"), "sentence")

    upload(page, good[1])
    until(lambda: "Why cedar and not birch?" in results(page), "answer after broken files")


def press(page: Any, label: str) -> None:
    find = lambda: page.find_elements("css selector", f"#image button[aria-label='{label}']")  # noqa: E731
    until(find, label)[0].click()


@pytest.mark.slow
def test_the_camera_takes_a_picture(page: Any) -> None:
    press(page, "Capture from camera")
    ask = lambda: [b for b in page.find_elements("css selector", "#image button") if "Webcam" in b.text]  # noqa: E731
    until(ask, "request for the camera")[0].click()
    playing = (
        "const video = document.querySelector('#image video'); return !!video && video.videoWidth > 0 && !video.paused"
    )
    until(lambda: page.execute_script(playing), "picture from the camera")
    press(page, "capture photo")
    until(lambda: "Why " in results(page), "answer")


@pytest.mark.slow
def test_an_image_can_be_pasted(page: Any, server: Server) -> None:
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.execute_cdp_cmd("Browser.grantPermissions", {"permissions": allowed, "origin": server.url})
    copy = """
        const canvas = document.createElement("canvas");
        canvas.getContext("2d").fillRect(20, 20, 90, 60);
        canvas.toBlob((blob) => navigator.clipboard.write([new ClipboardItem({"image/png": blob})]).then(arguments[0]));
    """
    page.execute_async_script(copy)
    press(page, "Paste from clipboard")
    until(lambda: "Why " in results(page), "answer")


@pytest.mark.slow
def test_the_map_can_be_hidden(page: Any, trees: Path) -> None:
    upload(page, next((trees / "test" / "birch").glob("*.jpg")))
    until(lambda: page.find_elements("css selector", ".pc-map"), "map")
    shown = page.find_element("css selector", ".pc-map")
    assert shown.is_displayed()
    page.find_element("css selector", ".pc-evidence input").click()
    assert not shown.is_displayed()


@pytest.mark.slow
def test_the_page_needs_no_network(page: Any, server: Server, trees: Path) -> None:
    upload(page, next((trees / "test" / "birch").glob("*.jpg")))
    until(lambda: "Why " in results(page), "answer")
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(loaded) > 10
    assert [name for name in loaded if not name.startswith((server.url, "data:", "blob:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_a_phone(page: Any, trees: Path, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    )
    upload(page, next((trees / "test" / "birch").glob("*.jpg")))
    until(lambda: "Why " in results(page), "answer")
    inner, outer = (page.execute_script(f"return document.documentElement.{n}Width") for n in ("scroll", "client"))
    assert inner <= outer
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_it_listens_on_this_machine_only(server: Server) -> None:
    connections = psutil.Process(server.process.pid).net_connections(kind="inet")
    assert {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN} == {
        ("127.0.0.1", server.port)
    }


@pytest.mark.slow
def test_no_other_file_is_served(server: Server, finished: Path, trees: Path) -> None:
    image = next((trees / "train" / "ash").glob("*.jpg"))
    files = ["/etc/passwd", str(finished / "config.json"), str(image), str(Path(__file__)), "../" * 12 + "etc/passwd"]
    paths = [f"{prefix}{file}" for file in files for prefix in ("/file=", "/gradio_api/file=", "/gradio_api/file/")]
    for folder in ("/", "/static/", "/assets/", "/svelte/", "/gradio_api/"):
        paths += [f"{folder}{dots * 12}etc/passwd" for dots in ("../", "%2e%2e/", "..%2f", "%252e%252e/")]
    for path in paths:
        status, text = server.request(path)
        assert status in (403, 404), path
        assert "root:" not in text


@pytest.mark.slow
def test_nothing_is_fetched_for_a_visitor(server: Server) -> None:
    for route in ("file", "proxy"):
        assert server.request(f"/gradio_api/{route}=http://127.0.0.1:{server.port}/")[0] == 403
    kind = {"meta": {"_type": "gradio.FileData"}}
    fetched = server.ask({"path": f"http://127.0.0.1:{server.port}/", **kind}, "web")
    assert "not fetched from the web" in fetched
    assert "pc-" not in fetched
    local = server.ask({"path": "/etc/hostname", **kind}, "file")
    assert '"success":false' in local.replace(" ", "")
    assert "pc-" not in local


@pytest.mark.slow
def test_other_hosts_and_large_files_are_refused(server: Server) -> None:
    assert server.request("/", headers={"Host": f"evil.example.com:{server.port}"})[0] == 403
    assert server.request("/", headers={"Host": f"localhost:{server.port}"})[0] == 200
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for size, expected in ((1000, 200), (600_000, 413)):
        body = head + bytes(size) + b"\r\n--x--\r\n"
        assert server.request("/gradio_api/upload", "POST", body, headers)[0] == expected


@pytest.mark.slow
def test_a_port_that_is_taken_is_a_sentence(server: Server, finished: Path) -> None:
    command = [sys.executable, "-m", "polycov", "app", str(finished), "--no-open", "--no-neighbours"]
    done = subprocess.run([*command, "--port", str(server.port)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"polycov: Cannot listen on 127.0.0.1:{server.port}")


@pytest.mark.slow
def test_uploads_are_removed_when_it_ends(server: Server) -> None:  # the last test: it ends the app
    assert list(server.uploads.glob("polycov-app-*/*"))
    server.process.terminate()
    assert server.process.wait(timeout=60) == 0
    assert list(server.uploads.glob("polycov-app-*")) == []
