"""The library's exceptions: all of them are `PolycovError`."""

import difflib
from collections.abc import Iterable


class PolycovError(ValueError):
    """An argument that the library cannot use; the message says what was expected, what came, and how to fix it."""


class SpecError(PolycovError):
    """A spec string that does not parse, or that names an unknown stage, method or option."""


class NotFittedError(PolycovError):
    """A stage that learns from data was used before `pool.fit` or `load_state_dict`."""


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
    """Returns ``value`` if it is an integer of at least 1.

    Raises:
        PolycovError: if it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolycovError(f"Expected {argument} of {stage} to be a positive integer, got {value!r}.")
    return value
