import math

import numpy as np
import pytest

from polycov import errors
from polycov.errors import (
    MissingDependencyError,
    PolycovError,
    finite_number,
    known,
    positive_int,
    require_module,
    true_or_false,
)


def test_every_error_is_a_polycov_error_and_a_value_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 5
    assert all(issubclass(kind, PolycovError) and issubclass(kind, ValueError) for kind in kinds)
    assert issubclass(MissingDependencyError, ImportError)


def test_known_names_are_sorted_and_the_closest_is_suggested() -> None:
    assert known("trui", ["triu", "flatten"]) == "Did you mean 'triu'? Known: flatten, triu."
    assert known("xyz", iter(["triu", "flatten"])) == "Known: flatten, triu."
    assert known("dimension", ["dim", "seed", "d"]) == "Did you mean 'dim'? Known: d, dim, seed."


@pytest.mark.parametrize("value", [1, 2**31 - 1, np.int64(7)])
def test_positive_integers(value: int) -> None:
    integer = positive_int("triu", "dim", value)
    assert integer == value
    assert type(integer) is int


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, "1", True, None])
def test_other_values_are_not_positive_integers(value: object) -> None:
    with pytest.raises(
        PolycovError, match=r"^Expected dim of triu to be a positive integer(?: up to 2147483647)?, got "
    ):
        positive_int("triu", "dim", value)


@pytest.mark.parametrize(
    ("value", "low", "high", "kind"),
    [
        (0, 0.0, math.inf, "a positive number"),
        (math.inf, 0.0, math.inf, "a positive number"),
        (math.nan, 0.0, math.inf, "a positive number"),
        (True, 0.0, math.inf, "a positive number"),
        ("1", 0.0, 1.0, "a number between 0 and 1"),
        (1, 0.0, 1.0, "a number between 0 and 1"),
    ],
)
def test_numbers_out_of_range(value: object, low: float, high: float, kind: str) -> None:
    with pytest.raises(PolycovError, match=f"^Expected p of gem to be {kind}, got "):
        finite_number("gem", "p", value, low, high)


def test_numbers_and_truth_values() -> None:
    assert finite_number("gem", "p", 0.5, 0, 1) == 0.5
    assert true_or_false("gem", "learnable", True) is True
    with pytest.raises(PolycovError, match=r"^Expected learnable of gem to be True or False, got 1\.$"):
        true_or_false("gem", "learnable", 1)


def test_a_missing_module_is_explained() -> None:
    assert require_module("math", "It is always there.") is math
    with pytest.raises(MissingDependencyError, match=r"^Search needs it\. Install it\.$"):
        require_module("polycov.no_such_module", "Search needs it. Install it.")
