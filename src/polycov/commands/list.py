"""``polycov list``."""

from dataclasses import dataclass
from typing import Literal

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.errors import PolycovError
from polycov.models.backbones import import_timm
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.pooling.methods import create_pool, get_method, list_methods
from polycov.pooling.pool import Pool
from polycov.system.tables import Table


@dataclass(frozen=True)
class List:
    """List the pooling methods, or the backbones."""

    what: Literal["methods", "backbones"] = "methods"
    """methods, or backbones."""
    pattern: str = "*"
    """Pattern for backbones, such as 'resnet*'."""


def run(arguments: list[str]) -> None:
    """Shows a list."""
    options = parse(List, "list", arguments, positional={"what": "[methods|backbones]", "pattern": "[PATTERN]"})
    (_show_methods if options.what == "methods" else _show_backbones)(options, Terminal())


def _show_methods(options: List, terminal: Terminal) -> None:
    pools: list[tuple[str, Pool]] = [(name, create_pool(name, 256)) for name in list_methods()]
    pools += [(name, create_pool(name, (256, 256))) for name in list_methods(inputs=2)]
    rows = [(n, pool.out_features, pool.spec, " ".join((get_method(n).__doc__ or "").split())) for n, pool in pools]
    terminal.table(Table(("method", "dimensions", "spec", "paper"), rows))
    terminal.write(
        "Dimensions for 256 channels; --dim sets the size of sketches and projections. Methods that begin with a cross "
        "moment have two inputs, and are for Python."
    )


def _show_backbones(options: List, terminal: Terminal) -> None:
    names = import_timm().list_models(options.pattern)
    if not names:
        raise PolycovError(f"No backbone matches {options.pattern!r}. Try a pattern such as 'resnet*'.")
    for name in names:
        terminal.write(f"{name} (offline)" if name == OFFLINE_BACKBONE else name)
    terminal.write(f"{len(names)} backbones. The offline one needs no network; others come from timm's hub, or a file.")
