"""The exceptions of the library, all of them subclasses of `PolycovError`."""

import difflib
import importlib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any


class PolycovError(ValueError):
    """An argument or file the library cannot use. The message says what was expected, what was given, how to fix it."""


class SpecError(PolycovError):
    """A spec string that cannot be parsed, or that names an unknown stage, method or option."""


class NotFittedError(PolycovError):
    """A stage fitted to data was used before `pool.fit` or `load_state_dict`."""


class MissingDependencyError(PolycovError, ImportError):
    """An optional package is not installed. The message says how to install it."""


class NonFiniteError(PolycovError, ArithmeticError):
    """Features contain NaN or Inf, or a value exceeds the range of its floating-point type."""


def require_module(name: str, sentence: str) -> Any:
    """Returns a module that may not be installed.

    Args:
        name: name of the module.
        sentence: what needs it, and how to install it.

    Raises:
        MissingDependencyError: with the sentence, if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(sentence) from error


def known(name: str, names: Iterable[str]) -> str:
    """Returns "Did you mean 'b'? Known: a, b, c." for an error about an unknown ``name``.

    Example:
        >>> known("tensorsketch", ["triu", "tensor_sketch"])
        "Did you mean 'tensor_sketch'? Known: tensor_sketch, triu."
    """
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1)
    close = close or [other for other in names if len(other) > 2 and name.startswith(other)]  # dimension → dim
    return (f"Did you mean {close[0]!r}? " if close else "") + f"Known: {', '.join(names)}."


def quoted(names: Sequence[str], count: int = 5) -> str:
    """Returns the first names in quotes, for an error or a note.

    Example:
        >>> quoted(["ash", "birch", "cedar"], count=2)
        "'ash', 'birch' …"
    """
    return ", ".join(map(repr, names[:count])) + (" …" if len(names) > count else "")


def first_line(error: BaseException) -> str:
    r"""Returns the first line of what an error says, without a full stop; the name of its type if it says nothing.

    Example:
        >>> first_line(ValueError("too long.\nSee the manual.")), first_line(MemoryError())
        ('too long', 'MemoryError')
    """
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def positive_int(stage: str, argument: str, value: object, most: int = 2**31 - 1) -> int:
    """Returns ``value`` as an int if it is an integer (also a NumPy one) from 1 to ``most``.

    Raises:
        PolycovError: otherwise.
    """
    try:
        integer = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        integer = 0
    if not 1 <= integer <= most:
        limit = f" up to {most}" if integer > most else ""
        raise PolycovError(f"Expected {argument} of {stage} to be a positive integer{limit}, got {value!r}.")
    return integer


def finite_number(stage: str, argument: str, value: object, low: float, high: float) -> float:
    """Returns ``value`` if it is a number strictly between ``low`` and ``high``.

    Raises:
        PolycovError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        kind = "a positive number" if (low, high) == (0, math.inf) else f"a number between {low:g} and {high:g}"
        raise PolycovError(f"Expected {argument} of {stage} to be {kind}, got {value!r}.")
    return value


def one_of(stage: str, argument: str, value: str, choices: Iterable[str]) -> str:
    """Returns ``value`` if it is one of the choices.

    Raises:
        PolycovError: otherwise.
    """
    if value not in (names := list(choices)):
        raise PolycovError(f"Unknown {argument} {value!r} of {stage}. {known(str(value), names)}")
    return value


def true_or_false(stage: str, argument: str, value: object) -> bool:
    """Returns ``value`` if it is True or False.

    Raises:
        PolycovError: otherwise.
    """
    if not isinstance(value, bool):
        raise PolycovError(f"Expected {argument} of {stage} to be True or False, got {value!r}.")
    return value
