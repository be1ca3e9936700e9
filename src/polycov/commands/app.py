"""``polycov app``."""

import os
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.explaining.app import make_app
from polycov.explaining.app_server import is_loopback, serve
from polycov.models.backbones import load_plugin


@dataclass(frozen=True)
class App:
    """Open a page on this machine: drop an image; see its classes, the evidence for them, and similar training images.

    Runs given together are shown side by side. Nothing leaves this machine.
    """

    runs: tuple[str, ...] = ()
    """Folders of finished runs or saved models, or names on the hub; several are shown side by side."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int | None = None
    """Port to listen on; default: the first free one from 7860 on."""
    max_upload_mb: float = 10
    """The largest image file, in megabytes."""
    neighbours: bool = True
    """Show the nearest training images."""
    open: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    plugin: str | None = None
    """A Python file or module to import first, which registers the backbone with timm."""


def run(arguments: list[str]) -> None:
    """Serves the app until it is interrupted."""
    options = parse(App, "app", arguments, positional={"runs": "RUN…"})
    if not options.runs:
        raise PolycovError("Expected the folder of a run.")
    load_plugin(options.plugin)
    signal.signal(signal.SIGTERM, _stop)  # so that the uploads are removed
    with tempfile.TemporaryDirectory(prefix="polycov-app-", ignore_cleanup_errors=True) as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads  # before gradio is imported
        _serve(options, Terminal())


def _serve(options: App, terminal: Terminal) -> None:
    terminal.write(f"loading {', '.join(options.runs)} …")
    app = make_app(options.runs, device=options.device, neighbours=options.neighbours, progress=terminal.progress)
    url = serve(
        app,
        host=options.host,
        port=options.port,
        max_upload_mb=options.max_upload_mb,
        open_browser=options.open,
        block=False,
    )
    terminal.write(f"app: {url} (Ctrl-C stops it)")
    if not is_loopback(options.host):
        terminal.write("Anyone who can reach this machine can use the app.")
    try:
        threading.Event().wait()
    finally:
        app.close(verbose=False)


def _stop(*_: Any) -> None:
    sys.exit(0)
