"""Sphinx: `make docs` builds the site in docs/_build; warnings are errors."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from polycov import __version__  # noqa: E402

project = "polycov"
author = "The polycov authors"
release = version = __version__
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_directives"]
exclude_patterns = ["_build", "reference_directives.py"]
myst_enable_extensions = ["deflist"]
highlight_language = "none"  # of blocks that do not name one
smartquotes = False  # two hyphens are an option
myst_heading_anchors = 4
myst_links_external_new_tab = True

default_role = "code"  # `name` in a docstring is code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False
python_display_short_literal_types = True
nitpicky = True
# Types of other packages, and those of our own that have no page: the site is built without a network.
nitpick_ignore_regex = [("py:.*", r"(?!polycov\.[A-Za-z]+$).*")]

html_theme = "furo"
html_title = f"polycov {__version__}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# Documents at the top of the repository are pages of the site too (docs/project/); links are turned accordingly.
TOP = {name: f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")}


def turn_links(text: str, at_top: bool, depth: int = 0) -> str:
    """Returns a page with links to documents at the top of the repository leading to their pages on the site."""
    for name, page in TOP.items():
        old = f"{name}.md" if at_top else f"{'../' * (depth + 1)}{name}.md"
        new = page if at_top else f"{'../' * depth}project/{page}"
        text = re.sub(rf"\]\({re.escape(old)}", f"]({new}", text)
    return text.replace("](docs/", "](../") if at_top else text


def on_source(app: Any, name: str, source: list[str]) -> None:
    source[0] = turn_links(source[0], at_top=False, depth=name.count("/"))
    if name == "index":  # pages that no table of contents names are guides
        named = set(re.findall(r"^[\w/]+$", source[0], re.M)) | {"index"}
        others = sorted(path.stem for path in Path(app.srcdir).glob("*.md") if path.stem not in named)
        source[0] = source[0].replace("OTHER_PAGES\n", "".join(f"{other}\n" for other in others))


def on_include(app: Any, path: Path, parent: str, source: list[str]) -> None:
    if Path(path).stem in TOP:
        source[0] = turn_links(source[0], at_top=True)


def setup(app: Any) -> None:
    app.connect("source-read", on_source)
    app.connect("include-read", on_include)
