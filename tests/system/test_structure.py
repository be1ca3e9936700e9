from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from polycov.errors import PolycovError
from polycov.system.structure import Structured, structure, to_plain


@dataclass(frozen=True)
class Group(Structured):
    rate: float = 1.0
    kind: Literal["a", "b"] | int = "a"


@dataclass(frozen=True)
class Whole(Structured):
    name: str
    paths: tuple[Path, ...] = ()
    group: Group = field(default_factory=Group)


def test_plain_values_become_dataclasses_and_back() -> None:
    whole = Whole("x", (Path("a"), Path("b")), Group(2, 7))
    assert structure(Whole, to_plain(whole), "a test") == whole
    assert structure(Whole, {"name": "x"}, "a test") == Whole("x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Missing 'name' in a test"),
        ({"name": 3}, "Option 'name' in a test should be a valid string, got 3"),
        ({"name": "x", "grop": {}}, "Unknown option 'grop' in a test. .*Did you mean 'group'"),
        ({"name": "x", "group": {"raet": 1}}, "Unknown option 'group.raet' in a test. .*Did you mean 'rate'"),
        ({"name": "x", "group": {"rate": True}}, "Option 'group.rate' in a test should be a valid number, got True"),
        ({"name": "x", "group": {"kind": "c"}}, "Option 'group.kind' in a test should be"),
        ({"name": "x", "group": 3}, "Option 'group' in a test"),
        ("text", "in a test"),
        (None, "in a test"),
    ],
)
def test_mistakes_are_named(values: object, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        structure(Whole, values, "a test")
