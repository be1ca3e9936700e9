"""The table of stages: what a spec string may name. Help texts, errors, docs and contract tests read it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import nn

from polycov.errors import SpecError, known

Kind = Literal["moment", "function", "vector", "first_order", "post"]
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

# What a pool gives to a stage that asks for it by name; everything else in a signature is written in the spec.
CONTEXT = ("channels", "features", "seed")


@dataclass(frozen=True)
class Stage:
    """A registered stage: its kind, its name, the callable that builds it, and examples of its use in a spec."""

    kind: Kind
    name: str
    build: Callable[..., nn.Module]
    examples: tuple[str, ...]

    @property
    def signature(self) -> inspect.Signature:
        """What may be written between the parentheses of the stage in a spec."""
        signature = inspect.signature(self.build)
        own = [p for name, p in signature.parameters.items() if name not in CONTEXT]
        return signature.replace(parameters=own, return_annotation=inspect.Signature.empty)

    @property
    def summary(self) -> str:
        """The first line of the stage's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]


_STAGES: dict[str, Stage] = {}


def register(kind: Kind, name: str, *examples: str) -> Callable[[Factory], Factory]:
    """Registers a Module class, or a function that builds a Module, as the stage ``name``.

    A parameter called ``channels``, ``features`` or ``seed`` is filled in by the pool; all others are the arguments
    of the stage in a spec.

    Args:
        kind: where the stage may stand.
        name: its name in a spec.
        examples: specs of the stage, small enough for tests; by default its bare name.

    Raises:
        SpecError: if the name is taken.
    """

    def add(build: Factory) -> Factory:
        if name in _STAGES:
            raise SpecError(f"A stage named {name!r} is registered already, as a {_STAGES[name].kind}.")
        _STAGES[name] = Stage(kind, name, build, examples or (name,))
        return build

    return add


def get_stage(name: str, kinds: tuple[Kind, ...], where: str) -> Stage:
    """Returns the stage ``name``, which must be of one of the ``kinds``; ``where`` is the spec, for the error."""
    stage = _STAGES.get(name)
    wanted = " or ".join(kind.replace("_", "-") for kind in kinds)
    if stage is None:
        names = [s.name for s in _STAGES.values() if s.kind in kinds]
        raise SpecError(f"Unknown {wanted} {name!r} in {where!r}. {known(name, names)}")
    if stage.kind not in kinds:
        raise SpecError(
            f"Expected a {wanted}, got the {stage.kind.replace('_', '-')} {name!r} in {where!r}. A spec reads "
            "'moment | function | vector', or one first-order pooling, with any number of '| post' behind."
        )
    return stage


def list_stages(kind: Kind | None = None) -> list[Stage]:
    """Lists the registered stages, of one kind or of all, by name.

    Example:
        >>> [stage.name for stage in list_stages("moment")]
        ['bilinear', 'covariance', 'gaussian']
    """
    return sorted((s for s in _STAGES.values() if kind in (None, s.kind)), key=lambda s: s.name)
