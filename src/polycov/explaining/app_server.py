"""Serving the app: to this machine by default, and nothing but the page and what its user uploads."""

import ipaddress
import os
import re
from typing import Any

from polycov.errors import PolycovError
from polycov.explaining.app import import_gradio, style

# Routes of gradio that fetch from the web, or do what this app does not need.
_REFUSED = re.compile(r"/(proxy=|file=\s*\w+:|process_recording|deep_link|(undo-)?vibe-edit|run-history)", re.I)
FONTS = ("system-ui", "sans-serif")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """A layer around the app that refuses some requests.

    Args:
        app: an ASGI application.
        local: whether to refuse requests addressed to another host than this machine, which a page elsewhere could
            send by pointing its own name here.
    """

    def __init__(self, app: Any, local: bool) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http" or self.allows(scope["path"], dict(scope["headers"]).get(b"host", b"").decode()):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"Not allowed."})

    def allows(self, path: str, host: str) -> bool:
        """Whether a request may pass."""
        name = re.sub(r":\d+$", "", host)
        return not _REFUSED.search(path) and (not self.local or is_loopback(name))


def serve(
    app: Any,
    *,
    host: str | None = "127.0.0.1",
    port: int | None = None,
    max_upload_mb: float = 10,
    open_browser: bool = False,
    block: bool = True,
) -> str:
    """Serves an app; there is no public link, no telemetry, and no file but uploads is served.

    Args:
        app: from `polycov.explaining.app.make_app`.
        host: to listen on; None for what GRADIO_SERVER_NAME says, as a Hugging Face Space needs.
        port: to listen on; None for the first free one from 7860 on.
        max_upload_mb: the largest file, in megabytes.
        open_browser: open the page in a browser.
        block: return only when interrupted.

    Returns:
        The address of the page.

    Raises:
        PolycovError: if the port is taken, or a number is out of range.
    """
    if not 0 < max_upload_mb <= 1000:
        raise PolycovError(f"Expected max_upload_mb from above 0 to 1000, got {max_upload_mb:g}.")
    if port is not None and not 1 <= port <= 65535:
        raise PolycovError(f"Expected port from 1 to 65535, got {port}.")
    gradio = import_gradio()
    from starlette.middleware import Middleware

    os.environ.pop("GRADIO_ALLOWED_PATHS", None)
    local = is_loopback(host or os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"))
    try:
        _, url, _ = app.queue(max_size=64).launch(
            server_name=host,
            server_port=port,
            max_file_size=int(max_upload_mb * 2**20),
            app_kwargs={"middleware": [Middleware(Guard, local=local)]},
            theme=gradio.themes.Default(font=FONTS, font_mono=("ui-monospace", "monospace")),
            css=style(),
            inbrowser=open_browser,
            prevent_thread_lock=True,
            share=False,
            quiet=True,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            ssr_mode=False,
            pwa=False,
        )
    except OSError as error:
        raise PolycovError(
            f"Cannot listen on {host}:{port or '7860 to 7959'}: {error} Choose another --port."
        ) from error
    if block:
        app.block_thread()
    return str(url)
