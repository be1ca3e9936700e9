"""The registry of stages that a spec can name; help, errors, docs and contract tests are generated from it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import nn

from polycov.errors import SpecError, known

Kind = Literal["source", "moment", "cross", "function", "vector", "first_order", "post"]
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

# Parameters that the pool fills in; all others in the signature of a stage are arguments in a spec.
CONTEXT = ("channels", "features", "blocks", "seed")


@dataclass(frozen=True)
class Stage:
    """A registered stage: its kind, its name, the callable that builds it, and examples of it in a spec."""

    kind: Kind
    name: str
    build: Callable[..., nn.Module]
    examples: tuple[str, ...]

    @property
    def signature(self) -> inspect.Signature:
        """The arguments of the stage in a spec."""
        signature = inspect.signature(self.build)
        arguments = [p for name, p in signature.parameters.items() if name not in CONTEXT]
        return signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)

    @property
    def summary(self) -> str:
        """The first line of the stage's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]


_STAGES: dict[str, Stage] = {}


def register(kind: Kind, name: str, *examples: str) -> Callable[[Factory], Factory]:
    """Registers a Module class, or a function that builds a Module, as the stage ``name``.

    The pool fills in parameters called ``channels``, ``features``, ``blocks`` (sizes of features side by side) and
    ``seed``; all others are arguments of the stage in a spec.

    Args:
        kind: the kind of stage.
        name: its name in a spec.
        examples: the stage as it appears in a spec, small enough for tests; by default its bare name.

    Raises:
        SpecError: if the name is already registered.
    """

    def add(build: Factory) -> Factory:
        if name in _STAGES:
            raise SpecError(
                f"The stage {name!r} is already registered, as a {_STAGES[name].kind}. Choose another name."
            )
        _STAGES[name] = Stage(kind, name, build, examples or (name,))
        return build

    return add


def get_stage(name: str, kinds: tuple[Kind, ...], where: str) -> Stage:
    """Returns the stage ``name``.

    Args:
        name: its name.
        kinds: the kinds that are allowed.
        where: the spec, for the error message.

    Raises:
        SpecError: if there is no such stage, or it has another kind.
    """
    stage = _STAGES.get(name)
    expected = " or ".join(kind.replace("_", "-") for kind in kinds)
    if stage is None:
        names = [s.name for s in _STAGES.values() if s.kind in kinds]
        raise SpecError(f"Unknown {expected} {name!r} in {where!r}. {known(name, names)}")
    if stage.kind not in kinds:
        raise SpecError(
            f"Expected a {expected}, got the {stage.kind.replace('_', '-')} {name!r} in {where!r}. A spec is "
            "'moment | function | vector', with a moment or cross moment, or a first-order pooling, followed by any "
            "number of '| post'."
        )
    return stage


def list_stages(kind: Kind | None = None) -> list[Stage]:
    """Lists the registered stages by name, all or those of one kind.

    Example:
        >>> [stage.name for stage in list_stages("moment")]
        ['bilinear', 'covariance', 'dropcov', 'gaussian']
    """
    return sorted((s for s in _STAGES.values() if kind in (None, s.kind)), key=lambda s: s.name)
