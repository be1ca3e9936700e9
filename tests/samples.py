"""Every registered stage and method in small pools, and features to test them on."""

import inspect

import torch
from torch import Tensor

import polycov
from polycov.pooling.cross_pool import CrossPool
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.spectral import SpectralFunction
from polycov.pooling.methods import reads_class_token, stage_names
from polycov.pooling.plan import Route
from polycov.pooling.pool import Pool, SecondOrderPool
from polycov.pooling.source import Channels, in_order

CHANNELS = 4


def method_specs() -> list[str]:
    """Every method of the literature, at a small dimension."""
    specs = []
    for name in polycov.list_methods():
        if reads_class_token(name):  # with an order, and a suite of their own
            continue
        method = polycov.get_method(name)
        small = {"dim": 6, "width": 12 if "fit" in name else 2}
        options = {key: small[key] for key in inspect.signature(method).parameters if key in small}
        specs.append(method(**options))
    return specs


def stage_specs() -> list[str]:
    """Every example of every registered stage, in an otherwise ordinary spec."""
    frames = {
        "source": "{} | covariance | sqrt(5) | triu",
        "moment": "{} | sqrt(5) | triu",
        "cross": "{} | sqrt(5) | flatten",
        "function": "covariance | {} | tensor_sketch(24)",
        "vector": "covariance | sqrt(5) | {}",
        "first_order": "{}",
        "post": "covariance | sqrt(5) | triu | {}",
    }
    stages = [stage for stage in polycov.list_stages() if stage.name != "class_token"]  # the only one with an order
    return [frames[stage.kind].format(example) for stage in stages for example in stage.examples]


def of_one_input(spec: str) -> bool:
    """Whether a pool with this spec has one input; the others have a contract suite of their own."""
    return polycov.parse_spec(spec).inputs == 1


def canonical(specs: list[str]) -> list[str]:
    """The specs in canonical form, without duplicates."""
    return list(dict.fromkeys(str(polycov.parse_spec(spec)) for spec in specs))


SIDE_BY_SIDE = [
    "[average | l2, covariance | sqrt(5) | triu | l2]",
    "[average, covariance | sqrt(5) | triu] | balance(1, 2) | project(5)",
    "[max, [average, bilinear | sqrt(exact) | tensor_sketch(8)] | balance] | signed_sqrt",
    "[average | project(2), gaussian | sqrt(5) | triu | project(5)] | signed_sqrt | project(6)",
    "[stage(last) | average, covariance | sqrt(5) | triu] | balance(1, 2)",
    "[stage(3) | covariance | sqrt(5) | triu, stage(4) | bilinear | sqrt(5) | count_sketch(3)] | balance | project(4)",
]

SPECS = list(filter(of_one_input, canonical(method_specs() + stage_specs() + SIDE_BY_SIDE)))
SECOND_ORDER = [spec for spec in SPECS if not polycov.parse_spec(spec).first_order]


def function_of(spec: str) -> MatrixFunction:
    """The matrix function of a second-order spec."""
    stages = polycov.parse_spec(spec).stages
    function: MatrixFunction = next(stage for stage in stages if stage.stage.kind == "function").build()
    return function


EXACT = [spec for spec in SECOND_ORDER if isinstance(function_of(spec), SpectralFunction)]
POLYNOMIAL = [
    spec for spec in SECOND_ORDER if function_of(spec).products is not None and "gram" in function_of(spec).routes
]
PRODUCTS = [spec for spec in SECOND_ORDER if function_of(spec).products is not None]
# Functions whose values are no sum over locations.
UNEXPLAINED = [spec for spec in SECOND_ORDER if "gram" not in function_of(spec).routes and "lyapunov" not in spec]
# Roots with the gradient of another root; their gradients are tested against scipy.
APPROXIMATE = [spec for spec in SECOND_ORDER if function_of(spec).approximate_gradient]
DIFFERENTIABLE = [spec for spec in SPECS if spec not in APPROXIMATE]


def features(
    batch: int = 2, locations: int = 20, channels: int = CHANNELS, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Random tokens, correlated between channels, with non-zero mean."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, locations, channels, generator=generator, dtype=torch.float64)
    mix = torch.randn(channels, channels, generator=generator, dtype=torch.float64) * 0.3 + torch.eye(channels)
    return (x @ mix + 0.5).to(dtype)


def repeated(channels: int = CHANNELS) -> Tensor:
    """Tokens (1, 2C, C) of mean 0 whose second moment has eigenvalues (2, 2, …, 1) in a rotated basis."""
    values = torch.full((channels,), 2.0, dtype=torch.float64)
    values[-1] = 1.0
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64)).Q
    half = values.sqrt().diag() @ rotation.mT
    return torch.cat([half, -half]).unsqueeze(0)


def channels_of(spec: str, channels: int) -> Channels:
    """The channels of a pool: a number, or divided among the stages that its spec names; what names none has
    the first.
    """
    names = stage_names(spec)
    if names == (None,):
        return channels
    order = in_order(names, "main")
    shares = [(channels + i) // len(order) for i in range(len(order))]
    return dict(zip(order, shares, strict=True))


def make(
    spec: str, channels: int = CHANNELS, dtype: torch.dtype = torch.float64, seed: int = 0, route: Route = "auto"
) -> Pool:
    """A pool with this spec in evaluation mode, fitted if necessary."""
    pool = polycov.create_pool(spec, channels_of(spec, channels), seed=seed, route=route).to(dtype).eval()
    if pool.fittable:
        pool.fit([(features(40, 12, channels, seed=9, dtype=dtype), torch.arange(40) % 3)])
    return pool


def routes(spec: str) -> tuple[str, ...]:
    """The routes of a second-order pool, or of all those side by side."""
    pools = [module for module in make(spec).modules() if isinstance(module, SecondOrderPool | CrossPool)]
    exist = [pool.routes if isinstance(pool, SecondOrderPool) else ("covariance",) for pool in pools]
    return tuple(name for name in exist[0] if all(name in routes for routes in exist))


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖ in float64."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


def spd(batch: int = 2, channels: int = 6, locations: int = 40) -> Tensor:
    """Random covariance matrices, (B, C, C)."""
    rows = polycov.functional.covariance(features(batch, locations, channels))
    return rows.mT @ rows


def unit_trace(matrix: Tensor) -> Tensor:
    """Matrices divided by their trace."""
    return matrix / matrix.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
