"""The library's exceptions: all of them are `PolycovError`."""

import difflib
import math
import operator
from collections.abc import Iterable


class PolycovError(ValueError):
    """An argument that the library cannot use; the message says what was expected, what came, and how to fix it."""


class SpecError(PolycovError):
    """A spec string that does not parse, or that names an unknown stage, method or option."""


class NotFittedError(PolycovError):
    """A stage that learns from data was used before `pool.fit` or `load_state_dict`."""


class MissingDependencyError(PolycovError, ImportError):
    """A package that an optional part of the library needs is not installed; the message says how to install it."""


class NonFiniteError(PolycovError, ArithmeticError):
    """Features with NaN or Inf came in, or a result left the range of its floating-point type."""


def known(name: str, names: Iterable[str]) -> str:
    """Returns "Known: a, b, c. Did you mean 'b'?" for an error about an unknown ``name``.

    Example:
        >>> known("tensorsketch", ["triu", "tensor_sketch"])
        "Known: tensor_sketch, triu. Did you mean 'tensor_sketch'?"
    """
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f"Known: {', '.join(names)}." + (f" Did you mean {close[0]!r}?" if close else "")


def positive_int(stage: str, argument: str, value: object) -> int:
    """Returns ``value`` as an int if it is an integer from 1 to 2³¹ − 1, a NumPy integer included.

    Raises:
        PolycovError: if it is anything else.
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if not 1 <= number < 2**31:
        raise PolycovError(f"Expected {argument} of {stage} to be a positive integer, got {value!r}.")
    return number


def finite_number(stage: str, argument: str, value: object, low: float, high: float) -> float:
    """Returns ``value`` if it is a number strictly between ``low`` and ``high``.

    Raises:
        PolycovError: if it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        kind = "a positive number" if (low, high) == (0, math.inf) else f"a number between {low:g} and {high:g}"
        raise PolycovError(f"Expected {argument} of {stage} to be {kind}, got {value!r}.")
    return value


def true_or_false(stage: str, argument: str, value: object) -> bool:
    """Returns ``value`` if it is True or False.

    Raises:
        PolycovError: if it is anything else.
    """
    if not isinstance(value, bool):
        raise PolycovError(f"Expected {argument} of {stage} to be True or False, got {value!r}.")
    return value
