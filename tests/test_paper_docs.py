"""docs/paper.md names files, tests and commands: each exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from polycov.commands.main import COMMANDS, main
from polycov.pooling.methods import list_methods

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
TESTS = [text for text in QUOTED if "::" in text]
FILES = [
    text for text in QUOTED if re.fullmatch(r"[\w./-]+\.(py|toml|csv|md|svg)", text) and text != "imagepreprocess.py"
]
RUNS = [text for text in QUOTED if text.startswith("polycov ")]


def test_the_page_names_something_of_each_kind() -> None:
    assert len(TESTS) > 20
    assert len(FILES) > 15
    assert len(RUNS) >= 4


@pytest.mark.parametrize("name", TESTS)
def test_every_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", FILES)
def test_every_file_exists(name: str) -> None:
    assert (ROOT / name).is_file() or (ROOT / "src" / "polycov" / name).is_file()


@cache
def help_of(command: str) -> str:
    import contextlib
    import io

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        main([command, "--help"])
    return shown.getvalue()


@pytest.mark.parametrize("line", RUNS)
def test_every_command_and_its_options_exist(line: str) -> None:
    words = line.split()
    assert words[1] in COMMANDS
    for word in words:
        if word.startswith("--"):
            assert word in help_of(words[1])


def test_every_link_leads_somewhere_and_every_method_is_one() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).is_file()
    for name in re.findall(r"`((?:ipccp|monet|isqrt|cbp|mpn)-[a-z0-9-]+)`", PAGE):
        assert name in list_methods()


def test_the_table_of_accuracies_is_that_of_the_recipes() -> None:
    """Every value of Table 2 stands in the header of a recipe."""
    headers = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "polycov" / "recipes").glob("*.toml")
    )
    rows = re.findall(r"^\| (?:iSQRT-COV|Monet-TS|Monet-RM|iPCCP-TS|iPCCP-RM) \| \d+k \|(.*)\|$", PAGE, re.M)
    values = [value.strip() for row in rows for value in row.split("|")]
    assert len(values) == 30
    assert all(value in headers for value in values)
