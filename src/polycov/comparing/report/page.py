"""The page of a comparison: one file that needs no other, and no network."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from polycov.comparing.report.figures import colour_of
from polycov.comparing.report.tables import gap_in_words, percent
from polycov.comparing.statistics import (
    Difference,
    Point,
    Recommendation,
    method_title,
    size_in_words,
    storing_in_words,
)
from polycov.errors import PolycovError
from polycov.system.files import write_file

AXES = (("dimensions", "dimensions"), ("bytes", "bytes"), ("time", "time"))
HEAD = (
    "method",
    "dimensions",
    "bytes",
    "test %",
    "validation %",
    "minus isqrt-cov",
    "ms a picture",
    "kernel error %",
    "as int8",
)
HEADS = {
    "probe": "a closed-form probe on the frozen backbone.",
    "train": "the layers on top of the frozen backbone are trained.",
    "finetune": "everything is trained.",
}


@dataclass(frozen=True)
class Study:
    """All that the page says of one comparison.

    Attributes:
        name: of the data.
        classes: how many.
        counts: pictures of each part.
        head: how features were judged.
        points: methods at their sizes.
        differences: to uncompressed isqrt-cov, by method and dimension asked for.
        recommendation: if there is one.
        gallery: pictures; see `polycov.comparing.report.gallery`.
        facts: pairs of what and how, for the end of the page.
    """

    name: str
    classes: int
    counts: dict[str, int]
    head: str
    points: Sequence[Point]
    differences: dict[tuple[str, int | None], Difference]
    recommendation: Recommendation | None
    gallery: dict[str, Any] | None
    facts: list[tuple[str, str]]


def write_page(path: Path, studies: Sequence[Study]) -> None:
    """Writes the page of one or several comparisons.

    Raises:
        PolycovError: if Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise PolycovError("The page needs Jinja2. Install it with: pip install 'polycov[train]'") from error
    from markupsafe import Markup

    here = files("polycov.comparing.report")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        here.joinpath("page.html").read_text("utf-8")
    )
    numbers = json.dumps([_numbers(study) for study in studies], allow_nan=False)
    text = template.render(
        title=f"Which pooling for {', '.join(dict.fromkeys(study.name for study in studies))}, and at what size?",
        style=Markup(here.joinpath("page.css").read_text("utf-8")),
        script=Markup(here.joinpath("page.js").read_text("utf-8")),
        json=Markup(numbers.replace("<", "\\u003c")),  # nothing in a name ends the script
        axes=AXES,
        parts=[_part(study) for study in studies],
    )
    write_file(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def _colours(study: Study) -> dict[str, str]:
    return colour_of(list(dict.fromkeys(point.method for point in study.points)))


def _numbers(study: Study) -> list[dict[str, Any]]:
    """The points as the script wants them."""
    colours = _colours(study)
    made = []
    for point in study.points:
        row: dict[str, Any] = {
            key: None if isinstance(v, float) and math.isnan(v) else v for key, v in asdict(point).items()
        }
        texts = {
            "test_text": percent(point.test, point.test_error),
            "val_text": percent(point.val, point.val_error),
        }
        made.append({**row, "method": method_title(point.method), "colour": colours[point.method], **texts})
    return made


def _part(study: Study) -> dict[str, Any]:
    recommendation = study.recommendation
    return {
        "name": study.name,
        "classes": study.classes,
        "counts": study.counts,
        "head_words": HEADS[study.head],
        "words": recommendation.words() if recommendation else "No recommendation: the records cannot be paired.",
        "has_kernel": any(point.kernel_error is not None for point in study.points),
        "storing": storing_in_words(study.points),
        "table": {"head": HEAD, "rows": [_row(study, point) for point in study.points]},
        "gallery": study.gallery,
        "gallery_of": (study.gallery or {}).get("of", "the feature that was recommended"),
        "facts": study.facts,
    }


def _row(study: Study, point: Point) -> dict[str, Any]:
    gap = study.differences.get((point.method, point.dim))
    cells = [
        (method_title(point.method), method_title(point.method)),
        (point.dimensions, str(point.dimensions)),
        (point.bytes, size_in_words(point.bytes)),
        (point.test, percent(point.test, point.test_error)),
        (point.val, percent(point.val, point.val_error)),
        (gap.mean if gap else "", gap_in_words(gap)),
        _cell(point.pool_ms, lambda time: f"{time:.2f}"),
        _cell(point.kernel_error, lambda error: f"{100 * error:.1f}"),
        _cell(point.int8, lambda change: f"{round(100 * change, 2) + 0.0:+.2f}"),  # 0 has no minus
    ]
    made = [{"value": value, "text": text} for value, text in cells]
    return {"method": method_title(point.method), "colour": _colours(study)[point.method], "cells": made}


def _cell(value: float | None, text: Callable[[float], str]) -> tuple[Any, str]:
    """What a column sorts by, and what it shows; nothing where nothing was measured."""
    return ("", "") if value is None else (value, text(value))
