"""The page of a comparison: one self-contained file that needs no network."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from polycov.comparing.recommendation import size_in_words
from polycov.comparing.report.figures import colours_of
from polycov.comparing.report.tables import difference_in_words, metric_in_words, percent, score_column
from polycov.comparing.statistics import Point, method_title
from polycov.comparing.study import Study, storage_in_words, stored_in_words
from polycov.system import pages

STORED_COLOUR = "currentColor"
AXES = (("dimensions", "dimensions"), ("bytes", "bytes"), ("time", "time"))
IMAGES = (
    ("hardest", "The hardest mistakes", "Those that gave the true class the least probability."),
    ("predictions", "Some predictions", "Test images drawn at random."),
)


def write_page(path: Path, studies: Sequence[Study], explanations: Sequence[str | None] = ()) -> None:
    """Writes the page of one or several comparisons.

    Args:
        path: of the page.
        studies: the comparisons.
        explanations: for each of them, the relative address of a page that explains its mistakes, or None.

    Raises:
        MissingDependencyError: if Jinja2 is not installed.
    """
    pages.write_page(
        path,
        "polycov.comparing.report",
        "page",
        data=[{"points": _numbers(study.points), "stored": _numbers(study.stored, STORED_COLOUR)} for study in studies],
        title=f"Which pooling for {', '.join(dict.fromkeys(study.name for study in studies))}, and at what size?",
        axes=AXES,
        studies=[_study(*both) for both in zip_longest(studies, explanations)],
    )


def _numbers(points: Sequence[Point], colour: str | None = None) -> list[dict[str, Any]]:
    """The points as the script reads them."""
    colours = colours_of(points)
    rows = []
    for point in points:
        row: dict[str, Any] = {
            key: None if isinstance(v, float) and math.isnan(v) else v for key, v in asdict(point).items()
        }
        row["metrics"] = {
            name: {"value": value, "error": None if math.isnan(error) else error, "text": percent(value, error)}
            for name, (value, error) in point.metrics.items()
        }
        texts = {
            "test_text": percent(point.test, point.test_error),
            "val_text": percent(point.val, point.val_error),
        }
        rows.append({**row, "method": method_title(point.method), "colour": colour or colours[point.method], **texts})
    return rows


def _study(study: Study, explanations: str | None) -> dict[str, Any]:
    recommendation = study.recommendation
    return {
        "name": study.name,
        "classes": study.classes,
        "counts": study.counts,
        "head_words": study.words,
        "score": study.protocol.score,
        "unit": study.protocol.unit,
        "scores": [("", study.protocol.score), *((name, name) for name in study.metrics)],
        "words": str(recommendation) if recommendation else "No recommendation: the settings share no images.",
        "has_kernel": any(point.kernel_error is not None for point in study.points),
        "storage": storage_in_words(study.points, study.protocol.score),
        "stored": stored_in_words(study.stored),
        "table": {"columns": _columns(study), "rows": [_row(study, point) for point in study.points]},
        "gallery": study.gallery,
        "images": [(*words, shown) for key, *words in IMAGES if (shown := (study.gallery or {}).get(key))],
        "gallery_of": (study.gallery or {}).get("of", "the recommended feature"),
        "explanations": explanations,
        "facts": study.facts,
    }


def _columns(study: Study) -> list[str]:
    rest = ["validation %", "minus isqrt-cov", "ms per image", "kernel error %", "as int8", "parameters"]
    interval = ["95 % over episodes"] if study.protocol.unit == "episodes" else []
    scores = [score_column(study), *interval, *(f"{name} %" for name in study.metrics)]
    return ["method", "dimensions", "bytes", *scores, *rest]


def _row(study: Study, point: Point) -> dict[str, Any]:
    gap = study.differences.get(point.key)
    cells = [
        (method_title(point.method), method_title(point.method)),
        (point.dimensions, str(point.dimensions)),
        (point.bytes, size_in_words(point.bytes)),
        (point.test, percent(point.test, point.test_error)),
        *([_cell(point.interval, lambda half: f"±{100 * half:.1f}")] if study.protocol.unit == "episodes" else []),
        *((point.metrics.get(name, ("",))[0], metric_in_words(point, name)) for name in study.metrics),
        (point.val, percent(point.val, point.val_error)),
        (gap.mean if gap else "", difference_in_words(gap)),
        _cell(point.pool_ms, lambda time: f"{time:.2f}"),
        _cell(point.kernel_error, lambda error: f"{100 * error:.1f}"),
        _cell(point.int8, lambda change: f"{round(100 * change, 2) + 0.0:+.2f}"),  # no minus zero
        _cell(point.parameters, lambda count: f"{count:,}"),
    ]
    shown = [{"value": value, "text": text} for value, text in cells]
    return {"method": method_title(point.method), "colour": colours_of(study.points)[point.method], "cells": shown}


def _cell(value: float | None, text: Callable[[float], str]) -> tuple[Any, str]:
    """What a column sorts by, and what it shows; both empty where nothing was measured."""
    return ("", "") if value is None else (value, text(value))
