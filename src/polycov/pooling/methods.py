"""The methods of the literature: each is a named spec.

A method is a function that returns a spec; its docstring names the paper. Its parameters are the options that
`create_pool` accepts for it, so a method of fixed dimension rejects ``dim``.
"""

import inspect
import numbers
from collections.abc import Callable
from typing import Any, overload

from polycov.errors import PolycovError, SpecError, known, positive_int
from polycov.pooling import paired, recent
from polycov.pooling.cross_pool import TwoInputPool
from polycov.pooling.plan import Route, check_route
from polycov.pooling.pool import Pool
from polycov.pooling.side_by_side import build_pool
from polycov.pooling.spec import Spec, parse_spec

Method = Callable[..., str]
_METHODS: dict[str, Method] = {}


def _method(function: Method) -> Method:
    _METHODS[function.__name__.rstrip("_").replace("_", "-")] = function
    return function


@_method
def average() -> str:
    """Average pooling, the default of most networks. Lin, Chen, Yan, "Network in Network", ICLR 2014."""
    return "average"


@_method
def max_() -> str:
    """Max pooling. Tolias, Sicre, Jégou, "Particular Object Retrieval with Integral Max-Pooling", ICLR 2016."""
    return "max"


@_method
def gem(p: float = 3) -> str:
    """Generalised-mean pooling with learnable p. Radenović, Tolias, Chum, "Fine-tuning CNN Image Retrieval with No
    Human Annotation", TPAMI 2019.
    """
    return f"gem({p})"


@_method
def bilinear() -> str:
    """B-CNN. Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015."""
    return "bilinear | identity | flatten | signed_sqrt | l2"


@_method
def cbp_ts(dim: int = 8192) -> str:
    """CBP, tensor sketch. Gao, Beijbom, Zhang, Darrell, "Compact Bilinear Pooling", CVPR 2016."""
    return f"bilinear | identity | tensor_sketch({dim}) | signed_sqrt | l2"


@_method
def cbp_rm(dim: int = 8192) -> str:
    """CBP, random Maclaurin. Gao, Beijbom, Zhang, Darrell, "Compact Bilinear Pooling", CVPR 2016."""
    return f"bilinear | identity | random_maclaurin({dim}) | signed_sqrt | l2"


@_method
def improved_bilinear(iterations: int | str = "exact") -> str:
    """Improved B-CNN, with the Lyapunov gradient; the root exact or by Newton–Schulz ``iterations``. Lin, Maji,
    "Improved Bilinear Pooling with CNNs", BMVC 2017.
    """
    root = "sqrt(exact)" if iterations == "exact" else f"sqrt({iterations}, gradient=lyapunov)"
    return f"bilinear | {root} | flatten | signed_sqrt | l2"


@_method
def mpn_cov() -> str:
    """MPN-COV. Li, Xie, Wang, Zuo, "Is Second-order Information Helpful for Large-scale Visual Recognition?",
    ICCV 2017.
    """
    return "covariance | sqrt(exact) | triu"


@_method
def g2denet() -> str:
    """G²DeNet. Wang, Li, Zhang, "G2DeNet: Global Gaussian Distribution Embedding Network and Its Application to Visual
    Recognition", CVPR 2017.
    """
    return "gaussian | sqrt(exact) | triu"


@_method
def monet_ts(dim: int = 8192) -> str:
    """MoNet, tensor sketch. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network", CVPR 2018."""
    return f"gaussian | sqrt(exact) | tensor_sketch({dim})"


@_method
def monet_rm(dim: int = 8192) -> str:
    """MoNet, random Maclaurin. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network", CVPR 2018."""
    return f"gaussian | sqrt(exact) | random_maclaurin({dim})"


@_method
def monet_2_ts(dim: int = 8192) -> str:
    """MoNet-2 (covariance alone), tensor sketch. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network",
    CVPR 2018.
    """
    return f"covariance | sqrt(exact) | tensor_sketch({dim})"


@_method
def monet_2_rm(dim: int = 8192) -> str:
    """MoNet-2 (covariance alone), random Maclaurin. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network",
    CVPR 2018.
    """
    return f"covariance | sqrt(exact) | random_maclaurin({dim})"


@_method
def isqrt_cov(iterations: int = 5) -> str:
    """iSQRT-COV. Li, Xie, Wang, Gao, "Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix
    Square Root Normalization", CVPR 2018.
    """
    return f"covariance | sqrt({iterations}) | triu"


@_method
def ipccp_ts(dim: int = 8192, iterations: int = 5) -> str:
    """iPCCP, tensor sketch. Mukuta, Machida, Harada, "Compact Approximation for Polynomial of Covariance Feature",
    2019.
    """
    return f"covariance | sqrt({iterations}) | tensor_sketch({dim})"


@_method
def ipccp_rm(dim: int = 8192, iterations: int = 5) -> str:
    """iPCCP, random Maclaurin. Mukuta, Machida, Harada, "Compact Approximation for Polynomial of Covariance Feature",
    2019.
    """
    return f"covariance | sqrt({iterations}) | random_maclaurin({dim})"


@_method
def ipccp_cs(dim: int = 8192, iterations: int = 5) -> str:
    """The iPCCP feature with a balanced count sketch of the triangle (polycov)."""
    return f"covariance | sqrt({iterations}) | count_sketch({dim})"


@_method
def ipccp_fit(dim: int = 512, iterations: int = 5, width: int = 8192) -> str:
    """The iPCCP feature, sketched wide and projected onto principal components of training features (polycov)."""
    return f"covariance | sqrt({iterations}) | count_sketch({width}) | project({dim})"


@_method
def mean_cov(iterations: int = 5) -> str:
    """Mean and root of the covariance side by side, the mean with a quarter of the root's variance (polycov)."""
    return f"[average, covariance | sqrt({iterations}) | triu] | balance(1, 2)"


@_method
def mean_cov_fit(dim: int = 512, iterations: int = 5, width: int = 8192) -> str:
    """Mean and root of the covariance side by side, projected so that distances tell classes apart (polycov)."""
    parts = f"average, covariance | sqrt({iterations}) | count_sketch({width})"
    return f"[{parts}] | balance(1, 2) | project({dim}, fit=classes)"


for _listed in (*recent.SECOND_ORDER, *recent.FIRST_ORDER, *paired.TWO_INPUTS):
    _method(_listed)


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
    for option in options:
        if option not in allowed:
            takes = f"takes only {', '.join(allowed)}" if allowed else "has no options"
            raise SpecError(f"{name!r} {takes}, got {option}={options[option]!r}.")
        if options[option] != "exact" and not isinstance(options[option], int | float | numbers.Real):
            raise SpecError(f"Expected {option} of {name!r} to be a number, got {options[option]!r}.")
    return str(parse_spec(_METHODS[name](**options) if name in _METHODS else name))


def is_first_order(name: str, **options: Any) -> bool:
    """Returns whether a method or spec is first-order pooling.

    Example:
        >>> is_first_order("gem"), is_first_order("ipccp-ts", dim=64)
        (True, False)
    """
    return parse_spec(method_spec(name, **options)).first_order


def needs_training(name: str) -> bool:
    """Returns whether a method or spec has parameters that mean nothing before they are trained.

    Example:
        >>> needs_training("attentive-probe"), needs_training("gem")
        (True, False)
    """
    stages = parse_spec(method_spec(name)).stages
    return any(getattr(stage.stage.build, "needs_training", False) for stage in stages)


def reads_class_token(name: str) -> bool:
    """Returns whether a method or spec pools the class token of a transformer.

    Example:
        >>> reads_class_token("class_token | l2"), reads_class_token("average")
        (True, False)
    """
    stages = parse_spec(method_spec(name)).stages
    return any(getattr(stage.stage.build, "reads_prefix", False) for stage in stages)


def fitted_dim(name: str, dim: int | None = None) -> int:
    """Returns the dimension of the fitted projection in a method or spec, which needs as many samples; 0 if none.

    Args:
        name: a method or a spec.
        dim: the dimension of the result; ignored if the method does not let one choose.

    Example:
        >>> fitted_dim("ipccp-fit", 256), fitted_dim("average | project(8)", 256), fitted_dim("isqrt-cov", 256)
        (256, 8, 0)
    """
    spec = parse_spec(method_spec(name, dim=dim if "dim" in method_options(name) else None))
    return max((dict(stage.arguments)["dim"] for stage in spec.stages if stage.stage.name == "project"), default=0)


@overload
def create_pool(
    name: str | Spec, channels: int, *, dim: int | None = None, seed: int = 0, route: Route = "auto", **options: Any
) -> Pool: ...


@overload
def create_pool(
    name: str | Spec, channels: tuple[int, int], *, dim: int | None = None, seed: int = 0, **options: Any
) -> TwoInputPool: ...


def create_pool(
    name: str | Spec,
    channels: int | tuple[int, int],
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
        channels: C, of the features; (C₁, C₂) for a pool of two inputs.
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
    """
    spec = parse_spec(method_spec(str(name) if isinstance(name, Spec) else name, dim=dim, **options))
    check_route(route)
    if spec.inputs == 2:
        if prefix_tokens or route not in ("auto", "covariance"):
            raise PolycovError(f"'{spec}' has two inputs: neither prefix tokens nor the route {route!r} exist for it.")
        return TwoInputPool(channels, spec, seed=seed, check_finite=check_finite)  # type: ignore[arg-type]  # it checks
    if not isinstance(channels, int):
        raise PolycovError(f"'{spec}' has one input, of a single number of channels, got {channels!r}.")
    pool = build_pool(channels, spec, seed=seed, route=route, check_finite=check_finite)
    if prefix_tokens:
        for module in pool.modules():
            if isinstance(module, Pool):
                module.prefix_tokens = positive_int("a pool", "prefix_tokens", prefix_tokens)
    return pool
