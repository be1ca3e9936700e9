"""The methods of the literature: each is a named spec.

A method is a function that returns a spec; its docstring names the paper. Its parameters are the options that
`create_pool` accepts for it, so a method of fixed dimension rejects ``dim``.
"""

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any, overload

from polycov.errors import PolycovError, SpecError, known, positive_int
from polycov.pooling import classic, paired, recent
from polycov.pooling.cross_pool import TwoInputPool
from polycov.pooling.plan import Route, check_route
from polycov.pooling.pool import Pool
from polycov.pooling.side_by_side import build_pool
from polycov.pooling.source import Channels
from polycov.pooling.spec import Spec, parse_spec

Method = Callable[..., str]

_METHODS: dict[str, Method] = {
    method.__name__.rstrip("_").replace("_", "-"): method
    for method in (*classic.CLASSIC, *recent.SECOND_ORDER, *recent.FIRST_ORDER, *paired.TWO_INPUTS)
}


def list_methods(*, inputs: int = 1) -> list[str]:
    """Lists the names of all methods, simplest first.

    Args:
        inputs: 1 for methods that pool one feature set, 2 for those that pool two.

    Example:
        >>> "ipccp-ts" in list_methods(), list_methods(inputs=2)
        (True, ['cross-bilinear', 'mcb', 'cross-root'])
    """
    return [name for name, method in _METHODS.items() if parse_spec(method()).inputs == inputs]


def get_method(name: str) -> Method:
    """Returns the function of a method: its parameters are the options, its docstring names the paper.

    Raises:
        SpecError: if there is no such method.

    Example:
        >>> get_method("ipccp-ts")(dim=4096)
        'covariance | sqrt(5) | tensor_sketch(4096)'
    """
    if not isinstance(name, str) or name not in _METHODS:
        raise SpecError(
            f"Unknown method {name!r}. {known(str(name), _METHODS)} "
            "A spec such as 'covariance | sqrt(5) | triu' is also possible."
        )
    return _METHODS[name]


def method_options(name: str) -> list[str]:
    """Lists the options of a method; a spec has none.

    Example:
        >>> method_options("ipccp-ts"), method_options("covariance | sqrt(5) | triu")
        (['dim', 'iterations'], [])
    """
    if not isinstance(name, str):
        raise SpecError(f"Expected the name of a method or a spec, got {name!r}.")
    is_spec = name not in _METHODS and (name == "class_token" or any(character in name for character in "|(["))
    return [] if is_spec else list(inspect.signature(get_method(name)).parameters)


def method_spec(name: str, **options: Any) -> str:
    """Returns the spec of a method, or the canonical form of a spec.

    Args:
        name: the name of a method, or a spec.
        options: options of the method, such as ``dim``; None is the default. A spec has none.

    Raises:
        SpecError: if the name or an option is unknown, or the spec is invalid.

    Example:
        >>> method_spec("isqrt-cov", iterations=3)
        'covariance | sqrt(3) | triu'
    """
    options = {key: value for key, value in options.items() if value is not None}
    allowed = method_options(name)
    for option, value in options.items():
        if option not in allowed:
            takes = f"takes only {', '.join(allowed)}" if allowed else "has no options"
            raise SpecError(f"{name!r} {takes}, got {option}={value!r}.")
        if value != "exact" and not isinstance(value, numbers.Real):
            raise SpecError(f"Expected {option} of {name!r} to be a number, got {value!r}.")
    return str(parse_spec(_METHODS[name](**options) if name in _METHODS else name))


def parse_method(name: str, **options: Any) -> Spec:
    """Returns the parsed spec of a method, or of a spec; arguments and errors as in `method_spec`."""
    return parse_spec(method_spec(name, **options))


def is_first_order(name: str, **options: Any) -> bool:
    """Returns whether a method or spec is first-order pooling.

    Example:
        >>> is_first_order("gem"), is_first_order("ipccp-ts", dim=64)
        (True, False)
    """
    return parse_method(name, **options).first_order


def needs_training(name: str) -> bool:
    """Returns whether a method or spec has parameters that mean nothing before they are trained.

    Example:
        >>> needs_training("attentive-probe"), needs_training("gem")
        (True, False)
    """
    return parse_method(name).any_stage("needs_training")


def reads_class_token(name: str) -> bool:
    """Returns whether a method or spec pools the class token of a transformer.

    Example:
        >>> reads_class_token("class_token | l2"), reads_class_token("average")
        (True, False)
    """
    return parse_method(name).any_stage("reads_prefix")


def stage_names(name: str) -> tuple[str | None, ...]:
    """Returns the stages of a network that a method or spec pools, each once; None where it does not name one.

    Example:
        >>> stage_names("[stage(last) | average, covariance | sqrt(5) | triu]"), stage_names("isqrt-cov")
        (('last', None), (None,))
    """
    return parse_method(name).sources


def fitted_dim(name: str, dim: int | None = None) -> int:
    """Returns the dimension of the fitted projection in a method or spec, which needs as many samples; 0 if none.

    Args:
        name: a method or a spec.
        dim: the dimension of the result; ignored if the method does not let one choose.

    Example:
        >>> fitted_dim("ipccp-fit", 256), fitted_dim("average | project(8)", 256), fitted_dim("isqrt-cov", 256)
        (256, 8, 0)
    """
    spec = parse_method(name, dim=dim if "dim" in method_options(name) else None)
    return max((dict(stage.arguments)["dim"] for stage in spec.stages if stage.name == "project"), default=0)


@overload
def create_pool(
    name: str | Spec,
    channels: Channels,
    *,
    dim: int | None = None,
    seed: int = 0,
    route: Route = "auto",
    **options: Any,
) -> Pool: ...


@overload
def create_pool(
    name: str | Spec, channels: tuple[int, int], *, dim: int | None = None, seed: int = 0, **options: Any
) -> TwoInputPool: ...


def create_pool(
    name: str | Spec,
    channels: Channels | tuple[int, int],
    *,
    dim: int | None = None,
    seed: int = 0,
    route: Route = "auto",
    check_finite: bool = True,
    prefix_tokens: int = 0,
    **options: Any,
) -> Pool:
    """Creates a pool from the name of a method (`list_methods`) or from a spec.

    Args:
        name: a method or a spec.
        channels: C, of the features; (C₁, C₂) for a pool of two inputs; for a spec that names stages of a network, the
            channels of each by its name, in the order in which they stand side by side: {"4": 128, "last": 64}. What
            names none pools the first.
        dim: the dimension of the result, if the method lets one choose (default 8192; 512 for fitted ones).
        seed: determines the sketches.
        route: how to compute it; see `SecondOrderPool`.
        check_finite: raise `NonFiniteError` instead of returning NaN or Inf.
        prefix_tokens: how many of the tokens, at the front, are class and register tokens of a transformer:
            ``class_token`` pools the first, and everything else leaves them out.
        options: other options of the method, such as ``iterations``.

    Raises:
        SpecError: if the name or an option is unknown, or the spec is invalid.
        PolycovError: if a number is out of range.

    Example:
        >>> create_pool("ipccp-ts", channels=64, dim=512)
        SecondOrderPool(64, 'covariance | sqrt(5) | tensor_sketch(512)', seed=0)
        >>> create_pool("mcb", channels=(64, 32), dim=512)
        TwoInputPool((64, 32), 'cross(bilinear) | identity | tensor_sketch(512) | signed_sqrt | l2', seed=0)
        >>> pool = create_pool("[stage(last) | average, covariance | sqrt(5) | triu]", channels={"4": 32, "last": 64})
        >>> pool(torch.rand(2, 96, 7, 7)).shape
        torch.Size([2, 592])
    """
    spec = parse_method(str(name) if isinstance(name, Spec) else name, dim=dim, **options)
    check_route(route)
    if spec.inputs == 2:
        if prefix_tokens or route not in ("auto", "covariance"):
            raise PolycovError(f"'{spec}' has two inputs: neither prefix tokens nor the route {route!r} exist for it.")
        return TwoInputPool(channels, spec, seed=seed, check_finite=check_finite)  # type: ignore[arg-type]  # it checks
    if not isinstance(channels, int | Mapping):
        raise PolycovError(f"'{spec}' has one input, of a single number of channels, got {channels!r}.")
    pool = build_pool(channels, spec, seed=seed, route=route, check_finite=check_finite)
    if pool.groups:
        _require_all_pooled(spec, pool.groups)
    if prefix_tokens:
        for module in pool.modules():
            if isinstance(module, Pool):
                module.prefix_tokens = positive_int("a pool", "prefix_tokens", prefix_tokens)
    return pool


def _require_all_pooled(spec: Spec, channels: Mapping[str, int]) -> None:
    """Refuses channels of a stage that a spec does not pool: it may name the wrong one."""
    pooled = {next(iter(channels)) if name is None else name for name in spec.sources}
    if missing := [name for name in channels if name not in pooled]:
        raise PolycovError(f"'{spec}' does not pool {', '.join(missing)}, of the stages {', '.join(channels)}.")
