"""From a dataclass of options to a command line: positional arguments, short flags, and help from its docstrings."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args

import tyro

T = TypeVar("T")


def parse(
    kind: type[T],
    name: str,
    arguments: Sequence[str],
    *,
    positional: dict[str, str],
    lists: Sequence[str] = (),
    flags: dict[str, str] | None = None,
    default: T | None = None,
) -> T:
    """Reads the options of a command.

    Args:
        kind: the dataclass of options; options in nested dataclasses are flags like its own.
        name: name of the command.
        arguments: arguments of the command line, without the name.
        positional: names of positional options, with what the help shows for them.
        lists: options that take several values, separated by spaces or commas.
        flags: options whose flag has another name, such as a reserved word of Python.
        default: values to start from.
    """
    command_line = _for_command_line(kind, positional, flags or {})
    initial = _converted(default, command_line) if default is not None else None
    parsed = tyro.cli(
        command_line,
        prog=f"polycov {name}",
        description=inspect.getdoc(kind),
        args=split_lists(arguments, lists),
        default=initial,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    return _converted(parsed, kind)


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """Returns the value of a flag before the command line is parsed; None if it is not given.

    Example:
        >>> value_of(["birds", "--recipe", "r.toml"], "--recipe"), value_of(["--recipe=r.toml"], "--resume")
        ('r.toml', None)
    """
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def vars_of(options: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by name, nested dataclasses as they are."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}


def narrowed(options: Any, kind: Any) -> Any:
    """Returns the options of a command as the library's dataclass, which that of the command extends."""
    return kind(**{field.name: getattr(options, field.name) for field in dataclasses.fields(kind)})


def _converted(options: Any, kind: Any) -> Any:
    """The options as another dataclass with the same fields, nested ones included."""
    values = vars_of(options)
    for option in dataclasses.fields(kind):
        if dataclasses.is_dataclass(option.type):
            values[option.name] = _converted(values[option.name], option.type)
    return kind(**values)


def _for_command_line(kind: Any, positional: dict[str, str], flags: dict[str, str]) -> Any:
    """The dataclass with what tyro needs to know about its fields: library code does not import tyro."""
    help_texts = field_docs(kind)
    fields = []
    for option in dataclasses.fields(kind):
        value = dataclasses.field(default=option.default, default_factory=option.default_factory)
        annotated: Any = option.type
        if dataclasses.is_dataclass(annotated):
            annotated = _for_command_line(annotated, {}, flags)
            value = dataclasses.field(default_factory=annotated)
        else:
            settings = _settings(option, positional.get(option.name)) | {"help": help_texts.get(option.name)}
            if option.name in flags:
                settings["name"] = flags[option.name]
            annotated = Annotated[annotated, tyro.conf.arg(**settings)]
        if option.name in positional:
            annotated = Annotated[annotated, tyro.conf.Positional]
        fields.append((option.name, annotated, value))
    return dataclasses.make_dataclass(kind.__name__, fields, namespace={"__doc__": inspect.getdoc(kind)})


def _settings(option: "dataclasses.Field[Any]", metavar: str | None) -> dict[str, Any]:
    """How the help shows an option. An option that may be None is shown as if it could not: its text says what it is
    by default. Positional ones that may be empty are marked as required, unless they are in brackets.
    """
    settings: dict[str, Any] = {}
    if option.name == "out":
        settings["aliases"] = ["-o"]
    if option.default is None:
        settings |= {"help_behavior_hint": "", "metavar": _metavar(option.type)}
    if metavar is not None:
        settings["metavar"] = metavar
        if option.default == ():
            settings["help_behavior_hint"] = "" if metavar.startswith("[") else "(required)"
    return settings


def _metavar(kind: Any) -> str:
    """What stands for the value of an optional type, in the words of tyro.

    Example:
        >>> from typing import Literal
        >>> _metavar(int | None), _metavar(Literal["stop", "skip"] | None), _metavar(bool | None)
        ('INT', '{stop,skip}', '{True,False}')
    """
    (inner,) = (choice for choice in get_args(kind) if choice is not type(None))
    choices = ("True", "False") if inner is bool else get_args(inner)
    return f"{{{','.join(map(str, choices))}}}" if choices else str(inner.__name__).upper()


def field_docs(kind: Any) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass."""
    docs: dict[str, str] = {}
    owners: list[Any] = [owner for owner in kind.__mro__ if dataclasses.is_dataclass(owner)]
    for owner in reversed(owners):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs


def split_lists(arguments: Sequence[str], lists: Sequence[str]) -> list[str]:
    """Splits the values of list options at commas, except within parentheses or before a space: ``a,b`` is ``a b``.

    Example:
        >>> split_lists(["x,y", "--methods", "gem,power(0.5, 3) | triu", "--seeds", "1,2"], ["methods"])
        ['x,y', '--methods', 'gem', 'power(0.5, 3) | triu', '--seeds', '1,2']
    """
    result: list[str] = []
    inside = False
    for argument in arguments:
        if argument.startswith("--"):
            flag, _, value = argument[2:].partition("=")
            inside = flag.replace("-", "_") in lists
            if inside and value:
                result.append(f"--{flag}")
                argument = value
            else:
                result.append(argument)
                continue
        if inside:
            result += [part.strip() for part in re.split(r",(?! )(?![^()]*\))", argument) if part.strip()]
        else:
            result.append(argument)
    return result
