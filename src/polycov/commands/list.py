"""``polycov list``: what there is to choose from."""

from dataclasses import dataclass
from typing import Literal

import tyro

from polycov.errors import PolycovError
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.pooling.methods import create_pool, get_method, list_methods
from polycov.progress import make_console


@dataclass
class List:
    """List the methods of pooling, or the backbones."""

    what: tyro.conf.Positional[Literal["methods", "backbones"]] = "methods"
    """methods, or backbones."""
    pattern: tyro.conf.Positional[str] = "*"
    """Of backbones, such as 'resnet*'."""


def run(options: List) -> None:
    """Prints a table.

    Raises:
        PolycovError: if no backbone fits the pattern.
    """
    (_methods if options.what == "methods" else _backbones)(options)


def _methods(options: List) -> None:
    from rich.table import Table

    table = Table("method", "dimensions", "spec", "paper")
    for name in list_methods():
        paper = " ".join((get_method(name).__doc__ or "").split())
        pool = create_pool(name, 256)
        table.add_row(name, str(pool.out_features), pool.spec, paper)
    console = make_console()
    console.print(table)
    console.print("Dimensions at 256 channels; where the spec has a number for them, --dim sets it.")


def _backbones(options: List) -> None:
    from polycov.models.backbones import import_timm

    names = import_timm().list_models(options.pattern)
    if not names:
        raise PolycovError(f"No backbone fits {options.pattern!r}. Try a pattern such as 'resnet*'.")
    console = make_console()
    for name in names:
        console.print(f"{name} (offline)" if name == OFFLINE_BACKBONE else name, markup=False)
    console.print(f"{len(names)} backbones. The offline one needs no network; others come from timm's hub, or a file.")
