"""``polycov export``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.explaining.space import write_space
from polycov.models.backbones import load_plugin
from polycov.models.export import export
from polycov.models.model import Model


@dataclass(frozen=True)
class Export:
    """Write a trained model for other programs: ONNX, torch.export, or a folder or Space for the Hugging Face hub."""

    model: str
    """Folder of a finished run or of a saved model, or a name on the hub."""
    out: Path = Path("model.onnx")
    """FILE.onnx, FILE.pt2 (torch.export), or a folder (config.json, model.safetensors and a model card)."""
    space: Path | None = None
    """Write a Hugging Face Space to this folder instead: the model and the page of polycov app."""
    license: str | None = None
    """For a folder: the licence its card states; default: that of the weights it started from."""
    plugin: str | None = None
    """A Python file or module to import first, which registers the backbone with timm."""


def run(arguments: list[str]) -> None:
    """Exports a model."""
    options = parse(Export, "export", arguments, positional={"model": "RUN|MODEL"})
    if options.plugin is not None:
        load_plugin(options.plugin)
        if options.space is not None:
            raise PolycovError(
                "A Space cannot have a plugin: publish the backbone as a package, and export without it."
            )
    terminal = Terminal()
    model = Model.from_pretrained(options.model)
    if options.space is not None:
        result = write_space(model, options.space, license=options.license)
    else:
        result = export(model, options.out, license=options.license, progress=terminal.progress)
    terminal.write(f"written: {result}")
