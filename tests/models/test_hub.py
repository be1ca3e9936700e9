"""Models by name: only their two files are asked for, and what came before is used without a connection."""

import hashlib
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polycov


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as a download needs: files of one model by name, with digest and revision."""

    folder: Path
    requests: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.requests.append(self.path)
        path = self.folder / self.path.rpartition("/")[2]
        if not self.path.startswith("/me/trees/resolve/main/") or not path.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0123456789012345678901234567890123456789")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Hub.folder, Hub.requests = saved, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_name_is_looked_up_on_the_hub(model: polycov.Model, saved: Path, hub: str, tmp_path: Path) -> None:
    (saved / "pytorch_model.bin").write_bytes(b"a pickle")  # never asked for, so it does not matter
    options: dict[str, Any] = {"endpoint": hub, "cache_dir": tmp_path / "cache"}
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(polycov.Model.from_pretrained("me/trees", **options)(x), model(x))
    assert {path.rpartition("/")[2] for path in Hub.requests} == {"config.json", "model.safetensors"}
    Hub.requests.clear()
    again = polycov.Model.from_pretrained("me/trees", local_files_only=True, **options)
    assert torch.equal(again(x), model(x))
    assert Hub.requests == []
    with pytest.raises(polycov.PolycovError, match=r"There is no folder 'me/nothing', and no such model on the hub"):
        polycov.Model.from_pretrained("me/nothing", **options)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(polycov.PolycovError, match=r"There is no folder 'me/trees', and no such model on the hub"):
        polycov.Model.from_pretrained("me/trees", local_files_only=True, **options)


def test_a_path_is_not_taken_for_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", Path("~/none"), Path("a/b/c"), Path("none")):
        with pytest.raises(polycov.PolycovError, match="Expected a folder, or a name on the hub such as 'me/birds'"):
            polycov.Model.from_pretrained(path)
