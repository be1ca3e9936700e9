"""The page of explanations: one self-contained file that needs no network."""

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.explaining.app_html import as_image, breakable, signed
from polycov.explaining.explained import ExplainedImage
from polycov.explaining.explanation import Explanation
from polycov.explaining.neighbour import Neighbour
from polycov.explaining.regions import RegionGrid
from polycov.system.pages import data_url, short_name, write_page

LEVELS = 127


def write_explanation_page(path: str | Path, items: Sequence[ExplainedImage | Explanation]) -> Path:
    """Writes a page that explains images; returns its path.

    Args:
        path: of the file, whose folder is made if it is missing.
        items: from `explain_images`, or explanations by themselves.

    Raises:
        PolycovError: if there are no items.
        MissingDependencyError: if Jinja2 is not installed.

    Example::

        write_explanation_page("page.html", polycov.explain("runs/birds-1", "warbler.jpg", against="runner-up"))
    """
    if not items:
        raise PolycovError("Expected explanations, got none.")
    images = [item if isinstance(item, ExplainedImage) else ExplainedImage([item]) for item in items]
    images = [replace(image, anchor=anchor_of(image.anchor or f"image-{i}")) for i, image in enumerate(images, 1)]
    return write_page(
        path,
        "polycov.explaining",
        "page",
        data=[_data(image) for image in images],
        filters={"breakable": breakable},
        title=images[0].views[0].question if len(images) == 1 else f"Explanations of {len(images)} images",
        images=[_image(image) for image in images],
    )


def anchor_of(name: str) -> str:
    """Returns a name that can be the anchor of a link.

    Example:
        >>> anchor_of("test/Baird Sparrow.jpg")
        'test-Baird-Sparrow.jpg'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "image"


def pack(values: Tensor) -> dict[str, Any]:
    """Returns numbers in a byte each: the sign and the root of each, relative to the largest.

    Example:
        >>> pack(torch.tensor([4.0, -1.0, 0.0]))
        {'scale': 4.0, 'bytes': 'f8AA'}
    """
    scale = float(values.abs().max()) or 1.0
    codes = (LEVELS * values.sign() * (values.abs() / scale).sqrt()).round().to(torch.int8)
    return {"scale": scale, "bytes": base64.b64encode(codes.numpy().tobytes()).decode()}


def _data(image: ExplainedImage) -> dict[str, Any]:
    """What the script reads."""
    first = image.views[0]
    grid = RegionGrid(*first.regions.shape)
    views = [_view_data(view) for view in image.views]
    for i, view in enumerate(image.views):
        if i != 1 or not first.against:  # the class is the difference plus the other class
            views[i]["pairs"] = pack(_triangle(view.pairs, grid))
    return {
        "map": list(first.regions.shape),
        "grid": [grid.rows, grid.columns],
        "views": views,
        "neighbours": [
            {"grid": list(near.grid), "pairs": pack(near.pairs), "strongest": near.strongest}
            for near in image.neighbours
        ],
    }


def _view_data(view: Explanation) -> dict[str, Any]:
    regions = [float(f"{value:.4g}") for value in view.regions.flatten().tolist()]
    return {"target": view.target, "against": view.against, "regions": regions}


def _triangle(pairs: Tensor, grid: RegionGrid) -> Tensor:
    """Pairs of locations as pairs of regions; they are symmetric, so a triangle is enough."""
    row, column = torch.triu_indices(grid.count, grid.count)
    return grid.sum(grid.sum(pairs.float(), 0), 1)[row, column]


def _image(image: ExplainedImage) -> dict[str, Any]:
    """What the template shows."""
    first = image.views[0]
    return {
        "name": short_name(first.name),
        "anchor": image.anchor,
        "source": _jpeg(first.image),
        "small": _jpeg(first.image, 240),
        "question": first.question,
        "best": first.probabilities[0],
        "truth": image.truth,
        "probabilities": [
            {"name": name, "text": f"{probability:.1%}", "percent": round(100 * probability, 2)}
            for name, probability in first.probabilities
        ],
        "views": [_view(view) for view in image.views],
        "note": first.note,
        "neighbours": [_neighbour(near) for near in image.neighbours],
    }


def _view(view: Explanation) -> dict[str, Any]:
    regions = view.regions.double()
    return {
        "label": f"{view.target} against {view.against}" if view.against else view.target,
        "question": view.question,
        "rows": [
            (f"regions for {view.target}", signed(float(regions.clamp(min=0).sum()))),
            (
                f"regions {f'for {view.against}' if view.against else f'against {view.target}'}",
                signed(float(regions.clamp(max=0).sum())),
            ),
            ("belongs to no region", signed(view.constant)),
        ],
        "score": signed(view.score),
        "score_name": "difference of the scores" if view.against else "score",
        "summary": _summary(regions),
        "channels": [(pair.first, pair.second, signed(pair.contribution)) for pair in view.channel_pairs],
    }


def _summary(regions: Tensor) -> str:
    """The strongest regions in words, for those who cannot see the map."""
    height, width = regions.shape
    order = regions.flatten().argsort(descending=True).tolist()
    texts = []
    for words, chosen in (("Most for", order[:3]), ("most against", order[::-1][:3])):
        places = ", ".join(
            f"row {i // width + 1}, column {i % width + 1} ({signed(float(regions.flatten()[i]))})" for i in chosen
        )
        texts.append(f"{words}: {places}")
    return f"A map of {height} by {width} regions. {'; '.join(texts)}."


def _neighbour(near: Neighbour) -> dict[str, Any]:
    (row, column), (own_row, own_column) = near.strongest
    return {
        "name": near.name,
        "label": near.label,
        "source": _jpeg(near.image, 240),
        "similarity": f"{near.similarity:.3f}",
        "words": (
            f"Strongest pair: row {row + 1}, column {column + 1} of the image with row {own_row + 1}, column "
            f"{own_column + 1} of this one."
        ),
    }


def _jpeg(image: Tensor, side: int | None = None) -> str:
    """An image with values from 0 to 1, (3, H, W), as a data URL."""
    return data_url(as_image(image), side=side)
