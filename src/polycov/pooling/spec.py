"""Spec strings such as ``covariance | sqrt(5) | tensor_sketch(8192)``, parsed to an object and printed back."""

import ast
import inspect
from dataclasses import dataclass
from typing import Any

import polycov.pooling.attention
import polycov.pooling.cross
import polycov.pooling.dropcov
import polycov.pooling.first_order
import polycov.pooling.functions
import polycov.pooling.moments
import polycov.pooling.post
import polycov.pooling.source
import polycov.pooling.vectors
from polycov.errors import PolycovError, SpecError
from polycov.pooling.registry import Kind, Stage, get_stage, list_stages

Value = int | float | str | bool | None

LONGEST = 10_000  # characters of a spec


@dataclass(frozen=True)
class StageSpec:
    """One stage of a spec: a registered stage with its arguments."""

    stage: Stage
    arguments: tuple[tuple[str, Any], ...]  # all of them by name, including defaults

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.name

    def __str__(self) -> str:
        """Writes all positional arguments, and keyword arguments that differ from their defaults."""
        words: list[str] = []
        values = dict(self.arguments)
        for name, parameter in self.stage.signature.parameters.items():
            value = values[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                words += [_write(v) for v in value]
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                words.append(_write(value))
            elif value != parameter.default:
                words.append(f"{name}={_write(value)}")
        return f"{self.name}({', '.join(words)})" if words else self.name

    def build(self, **context: int | tuple[int, ...]) -> Any:
        """Builds the Module; ``context`` holds what the pool fills in (channels, features, blocks, seed)."""
        values = dict(self.arguments)
        parameters = inspect.signature(self.stage.build).parameters
        positional: list[Any] = []
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional += values.pop(name)
        keywords = values | {name: value for name, value in context.items() if name in parameters}
        return self.stage.build(*positional, **keywords)


@dataclass(frozen=True)
class Spec:
    """A parsed spec: what makes a vector of local features, and the stages that follow.

    Attributes:
        aggregation: moment, function and vector, or a first-order pooling; empty for features side by side.
        post: the stages that follow.
        blocks: the specs of features side by side; empty for a single feature.
        source: the stage of a network whose features are pooled; None if the spec does not name one.
    """

    aggregation: tuple[StageSpec, ...]
    post: tuple[StageSpec, ...] = ()
    blocks: tuple["Spec", ...] = ()
    source: StageSpec | None = None

    @property
    def first_order(self) -> bool:
        """Whether it is first-order pooling; of features side by side, whether all are."""
        return all(block.first_order for block in self.blocks) if self.blocks else len(self.aggregation) == 1

    @property
    def cross(self) -> bool:
        """Whether it pools a cross moment."""
        return bool(self.aggregation) and self.aggregation[0].stage.kind == "cross"

    @property
    def inputs(self) -> int:
        """The number of inputs; features side by side have one."""
        return int(getattr(self.aggregation[0].stage.build, "inputs", 1)) if self.aggregation else 1

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """All stages, including those of features side by side."""
        inner = tuple(stage for block in self.blocks for stage in block.stages)
        source = (self.source,) if self.source is not None else ()
        return (*inner, *source, *self.aggregation, *self.post)

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The stages of a network whose features are pooled, each once; None for features that do not name one."""
        if self.blocks:
            return tuple(dict.fromkeys(name for block in self.blocks for name in block.sources))
        return (None if self.source is None else str(dict(self.source.arguments)["name"]),)

    def any_stage(self, attribute: str) -> bool:
        """Returns whether an attribute of any stage is true, such as ``is_sketch``."""
        return any(getattr(stage.stage.build, attribute, False) for stage in self.stages)

    def __str__(self) -> str:
        blocks = [f"[{', '.join(map(str, self.blocks))}]"] if self.blocks else []
        source = [str(self.source)] if self.source is not None else []
        return " | ".join([*blocks, *source, *map(str, (*self.aggregation, *self.post))])


def parse_spec(text: str) -> Spec:
    """Parses a spec: ``moment | function | vector``, or a first-order pooling, and any number of ``| post``.

    Features side by side are a list of specs in brackets, each with stages of its own, in place of the first stages.
    A single feature may begin with the stage of the network that it pools: ``stage(4) | covariance | sqrt(5) | triu``.

    Raises:
        SpecError: if it is invalid.

    Example:
        >>> str(parse_spec("covariance|sqrt|tensor_sketch( dim=64 )"))
        'covariance | sqrt(5) | tensor_sketch(64)'
        >>> str(parse_spec("[average, covariance|sqrt|triu] | balance | project(64)"))
        '[average, covariance | sqrt(5) | triu] | balance | project(64)'
    """
    if not isinstance(text, str) or not text.strip():
        raise SpecError(f"Expected a spec such as 'covariance | sqrt(5) | triu', got {text!r}.")
    if len(text) > LONGEST:
        raise SpecError(f"Expected a spec of at most {LONGEST} characters, got {len(text)}: {text[:40]!r} …")
    source, words = _parse_source(_split(text, "|", "[]"), text)
    side_by_side = words[0].startswith("[")
    blocks = _parse_blocks(words[0], text) if side_by_side else ()
    aggregation, rest = ((), words[1:]) if side_by_side else _parse_aggregation(words, text)
    post = tuple(_parse_stage(word, ("post",), text) for word in rest)
    if sum(stage.name == "project" for stage in post) > 1:
        raise SpecError(f"Expected at most one project in {text!r}.")
    spec = Spec(aggregation, post, blocks, source)
    if any(name is not None for name in spec.sources) and (spec.inputs == 2 or spec.any_stage("reads_prefix")):
        raise SpecError(f"A pool of two inputs, or of a class token, cannot name a stage: {text!r}.")
    return spec


def as_spec(spec: str | Spec) -> Spec:
    """Returns a spec, parsed if it is a text."""
    return spec if isinstance(spec, Spec) else parse_spec(spec)


def _parse_source(words: list[str], text: str) -> tuple[StageSpec | None, list[str]]:
    """The stage of a network that a spec begins with, if it does, and the words that remain."""
    if words[0].partition("(")[0].strip() not in [stage.name for stage in list_stages("source")]:
        return None, words
    if len(words) < 2 or words[1].startswith("["):
        raise SpecError(
            f"Expected a moment or a first-order pooling after {words[0]!r} in {text!r}. Features side by side name "
            "their stages in the list: '[stage(3) | average, stage(4) | covariance | sqrt(5) | triu]'."
        )
    source = _parse_stage(words[0], ("source",), text)
    try:
        polycov.pooling.source.stage_name(dict(source.arguments)["name"])
    except PolycovError as error:
        raise SpecError(f"Cannot read {words[0]!r} in {text!r}. {error}") from None
    return source, words[1:]


def _parse_aggregation(words: list[str], text: str) -> tuple[tuple[StageSpec, ...], list[str]]:
    """The first stages, and the words that remain."""
    first = _parse_stage(words[0], ("moment", "cross", "first_order"), text)
    kinds: tuple[Kind, ...] = ("function", "vector") if first.stage.kind in ("moment", "cross") else ()
    if len(words) < 1 + len(kinds):
        raise SpecError(
            f"Expected a {kinds[len(words) - 1]} after {words[-1]!r} in {text!r}: moment | function | vector."
        )
    rest = [_parse_stage(word, (kind,), text) for word, kind in zip(words[1:], kinds, strict=False)]
    return (first, *rest), words[1 + len(kinds) :]


def _parse_blocks(word: str, text: str) -> tuple[Spec, ...]:
    """The specs of features side by side: a list in brackets."""
    items = _split(word[1:-1], ",", "[]()")
    if not word.endswith("]") or len(items) < 2 or not all(items):
        raise SpecError(
            f"Cannot read {word!r} in {text!r}. Features side by side are at least two specs in brackets, such as "
            "'[average, covariance | sqrt(5) | triu]'."
        )
    return tuple(map(parse_spec, items))


def _split(text: str, separator: str, brackets: str) -> list[str]:
    """Splits a text where no bracket is open."""
    parts, depth = [""], 0
    for character in text:
        place = brackets.find(character)
        depth += 0 if place < 0 else (-1 if place % 2 else 1)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parse_stage(text: str, kinds: tuple[Kind, ...], where: str) -> StageSpec:
    try:
        node = ast.parse(text, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        if not isinstance(call.func, ast.Name) or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        positional = [_read(argument) for argument in call.args]
        keywords = {str(keyword.arg): _read(keyword.value) for keyword in call.keywords}
        if len(keywords) < len(call.keywords):
            raise ValueError
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"Cannot read {text!r} in {where!r}. A stage is a name with optional arguments (numbers or words), such as "
            "'triu' or 'sqrt(5)'. For a method such as 'isqrt-cov' use create_pool."
        ) from None
    stage = get_stage(call.func.id, kinds, where)
    signature = stage.signature
    try:
        bound = signature.bind(*positional, **keywords)
    except TypeError as error:
        raise SpecError(f"{text!r} in {where!r} does not match {stage.name}{signature}: {error}.") from None
    bound.apply_defaults()
    return StageSpec(stage, tuple(bound.arguments.items()))


def _read(node: ast.expr) -> Value:
    """A number, a word (quoted or bare), True, False or None."""
    value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    if not isinstance(value, int | float | str | None):
        raise ValueError
    return value


def _write(value: Value) -> str:
    if isinstance(value, str):
        return value if value.isidentifier() else repr(value)
    if isinstance(value, float):
        short = f"{value + 0.0:g}"  # −0 is 0
        return short if float(short) == value else repr(value)
    return repr(value)
