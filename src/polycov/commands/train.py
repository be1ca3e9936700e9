"""``polycov train``."""

from dataclasses import dataclass, field
from pathlib import Path

from polycov.training.config import Config, read_recipe, read_run_config


@dataclass
class Train:
    """Train a classifier on pictures: end to end, on a frozen backbone (--freeze), or in closed form (--probe).

    On several GPUs or machines the same: accelerate launch -m polycov train …
    """

    config: Config = field(default_factory=Config)
    recipe: Path | None = None
    """A TOML file with options; those given on the command line go before it."""
    out: Path | None = None
    """Folder of the run; by default a new one in runs."""
    resume: Path | None = None
    """Go on with this run, which was stopped or killed."""
    cache: Path | None = None
    """Folder for local features; by default POLYCOV_CACHE, or ~/.cache/polycov."""


def defaults(arguments: list[str]) -> Train:
    """Returns the options that a recipe or a run to go on with sets, before the command line does."""
    recipe, resume = (_value(arguments, flag) for flag in ("--recipe", "--resume"))
    if resume is not None:
        return Train(read_run_config(Path(resume)))
    return Train(read_recipe(Path(recipe))) if recipe is not None else Train()


def _value(arguments: list[str], flag: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def run(options: Train) -> None:
    """Trains."""
    from polycov.training.experiment import train

    train(options.config, options.resume or options.out, resume=options.resume is not None, cache=options.cache)
