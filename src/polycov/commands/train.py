"""``polycov train``."""

from dataclasses import dataclass
from pathlib import Path

from polycov.commands.parsing import narrowed, parse, value_of, vars_of
from polycov.commands.terminal import Terminal
from polycov.training.config import Config, read_recipe
from polycov.training.run_folder import RunFolder
from polycov.training.train import train


@dataclass(frozen=True)
class Train(Config):
    """Train a classifier on images: end to end, on a frozen backbone (--freeze), or in closed form (--probe).

    On several GPUs or machines: accelerate launch -m polycov train …
    """

    recipe: Path | None = None
    """Options in TOML, a file or a recipe of the package such as cub-resnet50; the command line takes precedence."""
    resume: Path | None = None
    """Resume this run, which was interrupted."""
    out: Path | None = None
    """Folder of the run; default: a new one in runs."""
    cache: Path | None = None
    """Folder for local features; default: POLYCOV_CACHE, or the user's cache folder."""


def run(arguments: list[str]) -> None:
    """Trains."""
    default = Train(**vars_of(_base_config(arguments)))
    options = parse(Train, "train", arguments, positional={"data": "[DATA]"}, lists=("milestones",), default=default)
    folder, resume = options.resume or options.out, options.resume is not None
    train(narrowed(options, Config), folder, resume=resume, cache=options.cache, progress=Terminal().progress)


def _base_config(arguments: list[str]) -> Config:
    """The options set by a recipe or by the run to resume, before those of the command line."""
    recipe, resume = (value_of(arguments, flag) for flag in ("--recipe", "--resume"))
    if resume is not None:
        return RunFolder(resume).read_config()
    return read_recipe(Path(recipe)) if recipe is not None else Config()
