"""The results of the app as HTML, with images inline: nothing is served as a file."""

from collections.abc import Sequence
from html import escape

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polycov.explaining.explanation import EXACT, Explanation
from polycov.explaining.neighbour import Neighbour
from polycov.system.pages import data_url

FOR, AGAINST = (230, 97, 1), (44, 96, 200)  # orange and blue, which colour-blind people can tell apart
MAP_SIDE, THUMBNAIL_SIDE = 192, 160


def heat_image(explanation: Explanation, side: int = MAP_SIDE) -> Image.Image:
    """Returns the contributions of the regions as a transparent image: orange for the class, blue against it."""
    largest = float(explanation.regions.abs().max()) or 1.0
    heat = (explanation.heat(side, side) / largest).clamp(-1, 1)
    pixels = torch.zeros(side, side, 4)
    pixels[..., :3] = torch.where(heat[..., None] > 0, torch.tensor(FOR), torch.tensor(AGAINST)).float()
    pixels[..., 3] = 200 * heat.abs() ** 0.8
    return Image.fromarray(pixels.round().byte().numpy())


def as_image(pixels: Tensor) -> Image.Image:
    """Returns an image (3, H, W) with values from 0 to 1 as a PIL image."""
    return Image.fromarray((255 * pixels).round().byte().permute(1, 2, 0).numpy())


def signed(value: float) -> str:
    """Returns a number with its sign.

    Example:
        >>> signed(-0.5), signed(2)
        ('−0.50', '+2.00')
    """
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")  # no minus zero


def message(text: str) -> str:
    """Returns a sentence about what went wrong."""
    return f'<p class="pc-message" role="alert">{escape(text)}</p>'


def panels(contents: Sequence[str]) -> str:
    """Returns panels side by side, below one another where there is no room."""
    inner = "".join(f'<section class="pc-panel">{content}</section>' for content in contents)
    return f'<div class="pc-panels">{inner}</div>'


def heading(name: str, details: str) -> str:
    """Returns the heading of a panel."""
    return f'<h2>{escape(name)}</h2><p class="pc-details" title="{escape(details)}">{escape(details)}</p>'


def body(parts: Sequence[str]) -> str:
    """Returns the parts of a panel; where it is wide, the second stands beside the others."""
    return f'<div class="pc-body">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def breakable(name: str) -> str:
    """Returns the name of a class, which a line may break after an underscore.

    Example:
        >>> breakable("Fox_<b>")
        'Fox_<wbr>&lt;b&gt;'
    """
    return escape(name).replace("_", "_<wbr>")


def bars(probabilities: Sequence[tuple[str, float]], explained: str | None = None) -> str:
    """Returns the most probable classes with bars as long as their probabilities; the one explained is bold."""
    rows = []
    for name, probability in probabilities:
        mark = ' class="pc-explained"' if name == explained else ""
        rows.append(
            f'<li{mark}><span class="pc-bar" style="width:{100 * np.clip(probability, 0, 1):.1f}%"></span>'
            f'<span class="pc-name">{escape(name)}</span><span class="pc-number">{probability:.1%}</span></li>'
        )
    return f'<ol class="pc-classes">{"".join(rows)}</ol>'


def evidence(explanation: Explanation) -> str:
    """Returns the question, the map over the image, and how the score adds up."""
    other = f"for {breakable(explanation.against)}" if explanation.against else "against it"
    regions = float(explanation.regions.double().sum())
    seen, heat = data_url(as_image(explanation.image)), data_url(heat_image(explanation))
    return f"""<h3>{breakable(explanation.question)}</h3>
<div class="pc-evidence"><label><input type="checkbox" checked> map</label>
<div class="pc-stack"><img class="pc-seen" alt="the image as the network sees it" src="{seen}">
<img class="pc-map" alt="map of the evidence" src="{heat}"></div></div>
<p class="pc-legend"><span class="pc-for">for {breakable(explanation.target)}</span>
<span class="pc-against">{other}</span></p>
<p class="pc-details">Score {signed(explanation.score)} = regions {signed(regions)},
constant {signed(explanation.constant)}.{"" if explanation.note == EXACT else " " + escape(explanation.note)}</p>"""


def neighbours(nearest: Sequence[Neighbour], explained: str) -> str:
    """Returns the nearest training images, with their classes; nothing if there are none."""
    if not nearest:
        return ""
    figures = []
    for neighbour in nearest:
        mark = ' class="pc-same"' if neighbour.label == explained else ""
        name, small = escape(neighbour.label), as_image(neighbour.image).resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        figures.append(
            f'<figure{mark} title="{name}, cosine {neighbour.similarity:.3f}"><img alt="" src="{data_url(small)}">'
            f"<figcaption>{breakable(neighbour.label)}</figcaption></figure>"
        )
    return f'<h3>Nearest training images</h3><div class="pc-neighbours">{"".join(figures)}</div>'
