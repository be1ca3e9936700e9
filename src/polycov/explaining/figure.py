"""An explanation as a figure for a paper: the image, and the map of each view with a colour bar."""

from pathlib import Path
from typing import Any

import numpy as np

from polycov.explaining.explained import ExplainedImage
from polycov.explaining.explanation import Explanation
from polycov.system.files import write_file

FOR, AGAINST = (0.90, 0.36, 0.0), (0.04, 0.43, 0.86)
SIDE = 3.0  # inches of a panel
Array = np.ndarray[Any, Any]


def write_explanation_figure(path: str | Path, item: ExplainedImage | Explanation) -> Path:
    """Draws the image, the map of the class, and that of the class against the other; returns the path.

    Args:
        path: a file that ends in ``.png``, ``.svg`` or ``.pdf``; its folder is made if it is missing.
        item: from `explain_images`, or an explanation by itself.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    path = Path(path)
    views = list(item.views) if isinstance(item, ExplainedImage) else [item]
    shown = sorted(views[:2], key=lambda view: view.against is not None)  # the class, then the class against another
    figure = Figure(figsize=(SIDE * (1 + 1.35 * len(shown)), SIDE * 1.15), layout="constrained")
    panels = figure.subplots(1, 1 + len(shown))
    for axis in panels:
        axis.set_axis_off()
    name, probability = shown[0].probabilities[0]
    panels[0].imshow(_pixels(shown[0]))
    panels[0].set_title(f"prediction: {name}\n{probability:.0%}", fontsize=9)
    for axis, view in zip(panels[1:], shown, strict=True):
        _draw_map(figure, axis, view)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix[1:].lower()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "polycov"}):  # the same explanation, the same file
        write_file(path, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=metadata))
    return path


def _pixels(view: Explanation) -> Array:
    pixels: Array = view.image.permute(1, 2, 0).numpy()
    return pixels


def _draw_map(figure: Any, axis: Any, view: Explanation) -> None:
    """The map over the image in grey, with a colour bar in the units of the score."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    heat = view.heat().numpy()
    most = float(view.regions.abs().max()) or 1.0
    grey = _pixels(view) @ np.array([0.299, 0.587, 0.114])
    axis.imshow(grey, cmap="gray", vmin=0, vmax=1)
    strength = np.clip(np.abs(heat) / most, 0, 1)
    colours = np.where(heat[..., None] > 0, np.array(FOR), np.array(AGAINST))
    axis.imshow(np.concatenate([colours, 0.85 * strength[..., None]], -1))
    axis.set_title(f"{view.target}\n" + (f"against {view.against}" if view.against else "by itself"), fontsize=9)
    shades = LinearSegmentedColormap.from_list("evidence", [AGAINST, (1, 1, 1), FOR])
    beside = axis.inset_axes((1.03, 0, 0.05, 1))
    bar = figure.colorbar(ScalarMappable(Normalize(-most, most), shades), cax=beside)
    bar.set_ticks([-most, 0, most], labels=[f"{-most:+.2f}", "0", f"{most:+.2f}"])
    bar.ax.tick_params(labelsize=8)
    bar.set_label(f"contribution, {view.score - view.constant:+.2f} in all", fontsize=8, labelpad=-4)
