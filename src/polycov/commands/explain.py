"""``polycov explain``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.explaining.explain import RUNNER_UP
from polycov.explaining.write import write_explanations
from polycov.models.backbones import load_plugin


@dataclass(frozen=True)
class Explain:
    """Show why a classifier decides as it does: exactly how much each region of an image, and each pair of regions,
    contributes to the score of a class.
    """

    model: str
    """Folder of a finished run or of a saved model, or a name on the hub."""
    images: tuple[Path, ...] = ()
    """Images, or folders of images."""
    out: Path = Path("explanations.html")
    """A page (.html), or figures (.png, .svg or .pdf), numbered if there are several images."""
    target: str | None = None
    """The class to explain; default: the predicted class."""
    against: str = RUNNER_UP
    """The class to compare it with; default: the most probable other class."""
    neighbours: int = 4
    """On a page: similar training images per image, and the regions they share; 0 for none."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a device such as cuda:1."""
    plugin: str | None = None
    """A Python file or module to import first, which registers the backbone with timm."""


def run(arguments: list[str]) -> None:
    """Explains images."""
    options = parse(
        Explain,
        "explain",
        arguments,
        positional={"model": "RUN|MODEL", "images": "IMAGE…"},
        flags={"target": "class"},
    )
    load_plugin(options.plugin)
    terminal = Terminal()
    written = write_explanations(
        options.model,
        options.images,
        options.out,
        target=options.target,
        against=options.against,
        neighbours=options.neighbours,
        device=options.device,
        progress=terminal.progress,
    )
    for path in written:
        terminal.write(f"written: {path}")
