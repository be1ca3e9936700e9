"""SECURITY.md: every line of what is defended has a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(TEXT)
    assert len(named) > 25
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file} has no {name}"


def test_every_line_of_what_is_defended_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| against")]
    assert len(rows) > 10
    assert all(TEST.search(row) for row in rows)
