"""Pages that need no network: HTML with its style, script, data and images in one file."""

import base64
import io
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polycov.errors import MissingDependencyError
from polycov.system.files import write_text

if TYPE_CHECKING:
    from PIL import Image


def write_page(
    path: str | Path,
    package: str,
    name: str,
    *,
    data: Any = None,
    filters: Mapping[str, Callable[[str], str]] | None = None,
    **values: Any,
) -> Path:
    """Writes a page, and its folder if that is missing; returns its path.

    Args:
        path: path of the page.
        package: package with the files ``NAME.html``, the body as a template, ``NAME.css`` and optionally ``NAME.js``.
        name: NAME.
        data: JSON values that the script reads.
        filters: filters of the template that return HTML.
        values: values that the template shows, ``title`` among them.

    Raises:
        MissingDependencyError: if Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingDependencyError("The page needs Jinja2. Install it with: pip install 'polycov[train]'") from error
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    for key, to_html in (filters or {}).items():
        environment.filters[key] = lambda text, to_html=to_html: Markup(to_html(text))
    folder = files(package)
    script = folder.joinpath(f"{name}.js")
    text = environment.from_string(files("polycov.system").joinpath("page.html").read_text("utf-8")).render(
        body=environment.from_string(folder.joinpath(f"{name}.html").read_text("utf-8")),
        style=Markup(folder.joinpath(f"{name}.css").read_text("utf-8")),
        script=Markup(script.read_text("utf-8")) if script.is_file() else "",
        data=Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c")),  # so that no name can end the script
        **values,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def data_url(image: "Image.Image", *, side: int | None = None, quality: int = 85) -> str:
    """Returns an image as a data URL: PNG if it is transparent, else JPEG.

    Args:
        image: the image.
        side: the longest side; a larger image is reduced to it.
        quality: quality of a JPEG.
    """
    if side is not None:
        image = image.copy()
        image.thumbnail((side, side))
    kind = "png" if image.mode == "RGBA" else "jpeg"
    file = io.BytesIO()
    image.save(file, kind, **({} if kind == "png" else {"quality": quality}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def short_name(name: str) -> str:
    """Returns a file and its folder: a page is shown to others, whom the rest of the path does not concern.

    Example:
        >>> short_name("/home/ada/birds/wren/1.jpg")
        'wren/1.jpg'
    """
    return "/".join(Path(name).parts[-2:])
