from dataclasses import dataclass, field
from pathlib import Path

import pytest

from polycov.commands.parsing import field_docs, parse


@dataclass(frozen=True)
class Inner:
    """A group."""

    size: int = 3
    """How large."""


@dataclass(frozen=True)
class Options:
    """What it does."""

    data: str = "here"
    """Where it
    is."""
    names: tuple[str, ...] = ("a",)
    """Which."""
    out: Path = Path("out")
    """Where to."""
    inner: Inner = field(default_factory=Inner)


def options(*arguments: str, default: Options | None = None) -> Options:
    return parse(Options, "try", arguments, positional={"data": "DATA"}, lists=("names",), default=default)


def test_groups_are_flat_and_lists_take_spaces_or_commas() -> None:
    parsed = options("there", "--size", "5", "--names", "x", "y,z(1, 2)", "-o", "somewhere")
    assert parsed == Options("there", ("x", "y", "z(1, 2)"), Path("somewhere"), Inner(5))
    assert options("--names=x,y").names == ("x", "y")
    assert options() == Options()


def test_defaults_can_be_given() -> None:
    default = Options("there", ("x",), Path("o"), Inner(7))
    assert options(default=default) == default
    assert options("--size", "2", default=default) == Options("there", ("x",), Path("o"), Inner(2))


def test_help_comes_from_the_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    assert field_docs(Options) == {"data": "Where it is.", "names": "Which.", "out": "Where to."}
    with pytest.raises(SystemExit):
        options("--help")
    out = capsys.readouterr().out
    for text in ("polycov try", "What it does.", "DATA", "Where it is.", "How large.", "-o"):
        assert text in out


@dataclass(frozen=True)
class Images:
    """What it does."""

    images: tuple[str, ...] = ()
    """Which images."""


@pytest.mark.parametrize(("shown", "hint"), [("IMAGE…", True), ("[IMAGE…]", False)])
def test_help_marks_what_may_not_be_omitted(shown: str, hint: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Images, "try", ["--help"], positional={"images": shown})
    out = capsys.readouterr().out
    assert shown in out
    assert ("(required)" in out) is hint
    assert "default" not in out
