"""From plain values (TOML, JSON) to dataclasses, checked by pydantic, with one sentence for each mistake."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from polycov.errors import MissingDependencyError, PolycovError, known

T = TypeVar("T")


class Structured:
    """Base of the dataclasses that are read from files: unknown names and values of another type are refused."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}


def structure(kind: type[T], values: Any, source: str) -> T:
    """Makes a dataclass, or a value of a plain type such as ``dict[str, list[int]]``, of plain values.

    Args:
        kind: the dataclass or type.
        values: as TOML or JSON gives them; lists become tuples and strings paths where the dataclass wants them.
        source: where the values come from, for the error.

    Raises:
        PolycovError: on an unknown name or a value of another type.
        MissingDependencyError: if pydantic is not installed.
    """
    try:
        from pydantic import ValidationError
    except ImportError as error:
        raise MissingDependencyError(
            "Configurations need pydantic. Install it with: pip install 'polycov[train]'"
        ) from error
    try:
        hashable: Any = kind
        text = json.dumps(values, default=str, ensure_ascii=False)
        result: T = _adapter(hashable).validate_json(text.translate(_HIDDEN), strict=True)
        return result if text.isascii() else _shown(result)
    except ValidationError as error:
        raise PolycovError(_sentence(error.errors()[0], kind, source)) from error
    except (TypeError, ValueError, RecursionError) as error:  # such as characters that no file can hold
        raise PolycovError(f"Cannot read {source}: {error}.") from error


# Bytes of file names that are not UTF-8, which pydantic does not read as JSON: characters for private use, meanwhile.
_HIDDEN = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_SHOWN = {hidden: byte for byte, hidden in _HIDDEN.items()}


def _shown(value: Any) -> Any:
    """The value with the names as they were."""
    if isinstance(value, str):
        return value.translate(_SHOWN)
    if isinstance(value, Path):
        return type(value)(_shown(str(value)))
    if isinstance(value, dict):
        return {_shown(key): _shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_shown, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {name: new for name, old in vars(value).items() if (new := _shown(old)) != old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


@functools.cache
def _adapter(kind: Any) -> Any:
    """The validator of a dataclass, which takes milliseconds to build."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _sentence(error: Mapping[str, Any], kind: Any, source: str) -> str:
    """The first mistake in words: which option, what was wrong, what was given."""
    fields = {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    where = [str(part) for part in error["loc"]]
    section: Any = fields[where[0]].type if where and where[0] in fields else None
    inside = dataclasses.is_dataclass(section)
    name = ".".join(where[: 2 if inside else 1]) or "value"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        options = [field.name for field in dataclasses.fields(section)] if inside else list(fields)
        return f"Unknown option {name!r} in {source}. {known(where[-1], options)}"
    if error["type"] in ("missing", "missing_argument"):
        return f"Missing {name!r} in {source}."
    message = str(error["msg"]).removeprefix("Input ")
    return f"Option {name!r} in {source} {message}, got {repr(error['input'])[:100]}."


def to_plain(value: Any) -> Any:
    """Returns a dataclass as JSON would give it back: dictionaries, lists, strings and numbers."""
    return json.loads(json.dumps(dataclasses.asdict(value), default=str))
