"""Directives of the reference: options of the commands, stages and methods, each written from what the code says."""

import dataclasses
import inspect
from contextlib import suppress
from importlib import import_module
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin
from unittest.mock import patch

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import polycov
from polycov.commands.main import COMMANDS
from polycov.commands.parsing import field_docs

KINDS = {
    "source": "Stages of a network",
    "moment": "Moments",
    "cross": "Cross moments",
    "function": "Functions",
    "vector": "Vectors",
    "post": "Stages after the vector",
    "first_order": "First-order pools",
}


class Generated(SphinxDirective):
    """A directive that is replaced by Markdown."""

    def markdown(self) -> str:
        """What it is replaced by."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parses the text, its headings included."""
        lines = StringList(self.markdown().splitlines(), source=self.get_source_info()[0])
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(lines, 0, node, match_titles=1)
        return node.children


class Commands(Generated):
    """Every command with its options."""

    def markdown(self) -> str:
        return "\n".join(command_page(name) for name in COMMANDS)


def command_page(name: str) -> str:
    """A section on a command: what it does, and its options in groups."""
    kind, positional, renamed = options_of(name)
    words = " ".join(["polycov", name, *positional.values(), "[OPTIONS]"])
    lines = [f"\n## polycov {name}\n", f"```\n{words}\n```\n", inspect.getdoc(kind) or "", ""]
    groups: list[tuple[str, Any]] = [("", kind)]
    groups += [(option.name, option.type) for option in dataclasses.fields(kind) if is_group(option)]
    for group, owner in groups:
        rows = [option for option in dataclasses.fields(owner) if not is_group(option)]
        texts = field_docs(owner)
        if group and rows:
            lines += [f"\n{(inspect.getdoc(owner) or group).partition(chr(10))[0]}\n"]
        for option in rows:
            shown = positional.get(option.name) or f"--{renamed.get(option.name, option.name).replace('_', '-')}"
            lines += [f"`{shown}`{'' if option.name in positional else value(option)}"]
            lines += [f": {texts.get(option.name, '')}{default(option)}", ""]
    return "\n".join(lines)


class Asked(Exception):
    """A command was about to parse its arguments."""


def options_of(name: str) -> tuple[Any, dict[str, str], dict[str, str]]:
    """What a command hands to `parse`: the dataclass of its options, positional ones, and those with other flags."""
    module = import_module(f"polycov.commands.{name}")
    with patch.object(module, "parse", side_effect=Asked) as parse, suppress(Asked):
        module.run([])
    settings = parse.call_args.kwargs
    return parse.call_args.args[0], settings["positional"], settings.get("flags") or {}


def is_group(option: "dataclasses.Field[Any]") -> bool:
    """Whether a field holds a group of options."""
    return dataclasses.is_dataclass(option.type)


def value(option: "dataclasses.Field[Any]") -> str:
    """What its value is, in a word."""
    kinds = get_args(option.type) if get_origin(option.type) in (Union, UnionType) else (option.type,)
    choices = [str(choice) for kind in kinds for choice in literals(kind)]
    if choices:
        return " " + ", ".join(f"`{choice}`" for choice in choices)
    names = [getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None)]
    words = {"bool": "", "int": " INTEGER", "float": " NUMBER", "str": " TEXT", "Path": " PATH", "tuple": " VALUES"}
    return words.get(names[0].partition("[")[0], " VALUE")


def literals(kind: Any) -> list[object]:
    """The choices of a type."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in literals(part)]


def default(option: "dataclasses.Field[Any]") -> str:
    """What it is by default, where the text cannot say so."""
    if option.default in (dataclasses.MISSING, None, "", ()) or isinstance(option.default, bool):
        return "" if not option.default or option.default is dataclasses.MISSING else " On by default."
    shown = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)
    return f" Default: `{shown}`."


class Stages(Generated):
    """Every stage that a spec can name."""

    def markdown(self) -> str:
        lines = []
        for kind, title in KINDS.items():
            lines += [f"\n## {title}\n", "| stage | in a spec | |", "|---|---|---|"]
            for stage in polycov.list_stages(kind):
                examples = ", ".join(f"`{example}`" for example in stage.examples)
                lines.append(
                    f"| `{stage.name}{arguments(stage)}` | {examples} | {stage.summary} |".replace("{", "&#123;")
                )
        return "\n".join(lines)


def arguments(stage: Any) -> str:
    """The arguments of a stage with their defaults, or nothing."""
    shown = [
        name if parameter.default is parameter.empty else f"{name}={parameter.default}"
        for name, parameter in stage.signature.parameters.items()
    ]
    return f"({', '.join(shown)})" if shown else ""


class Names(Generated):
    """The public names of a module, each by autodoc."""

    required_arguments = 1
    has_content = True

    def markdown(self) -> str:
        module = import_module(self.arguments[0])
        lines = []
        for name in self.content or module.__all__:
            item = getattr(module, name)
            kind = "function" if inspect.isroutine(item) else "exception" if issubclass(item, Exception) else "class"
            members = "" if kind == "function" else "   :members:\n"
            lines.append(f"```{{eval-rst}}\n.. auto{kind}:: {module.__name__}.{name}\n{members}```\n")
        return "\n".join(lines)


def setup(app: Any) -> dict[str, Any]:
    for name, directive in (("commands", Commands), ("stages", Stages), ("names", Names)):
        app.add_directive(f"polycov-{name}", directive)
    return {"parallel_read_safe": True}
