"""How to compute a pool: the route, the algorithm and the dtype, decided here and nowhere else.

All routes and algorithms compute the same feature, so the cheapest is taken. Prices are counted in products of square
matrices, and were fitted to times on a CPU (``polycov bench --what routes ideas``). Decisions are plain Python on
shapes, so they work under `torch.compile` and `torch.export`.
"""

from typing import Literal, NamedTuple, Protocol, get_args

import torch

from polycov.errors import PolycovError, known
from polycov.pooling.symmetric import count_blocks

Route = Literal["auto", "covariance", "gram", "paper"]
Algorithm = Literal["products", "eigenvalues"]

HALF = (torch.float16, torch.bfloat16)

RECTANGULAR = 1.6  # time of a product with rows on the N × N side, over a square one of as many multiply-adds
FORWARD_AND_BACKWARD = 3.2  # time of a matrix product with its share of the backward pass, over the product alone
MARGIN = 0.95  # an eigendecomposition must be this much cheaper than products
ONE_THREAD = 0.8  # price of an eigendecomposition on one thread, over several, which it uses less well than products


class Priced(Protocol):
    """What the plan asks of a matrix function.

    Attributes:
        products: the number of matrix products; None if the function can only be computed on eigenvalues.
        slope_steps: the iterations in a divided difference, which the backward pass on eigenvalues needs; None if a
            function made of products cannot be computed on eigenvalues.
        routes: the routes that exist for the function.
        wide: whether the function is computed in float64.
    """

    products: int | None
    slope_steps: int | None
    routes: tuple[str, ...]
    wide: bool


class Plan(NamedTuple):
    """How to compute a pool for one shape.

    Attributes:
        route: "covariance" (the C × C side), "gram" (the N × N side) or "paper" (the sketch at every location).
        algorithm: how the matrix function is computed.
        dtype: what to compute in.
    """

    route: str
    algorithm: Algorithm
    dtype: torch.dtype


def make_plan(
    function: Priced,
    locations: int,
    channels: int,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    gradient: bool = False,
    route: Route = "auto",
) -> Plan:
    """Plans how to compute a function of the second-order statistic.

    Args:
        function: the matrix function.
        locations: N.
        channels: C, after the moment.
        dtype: dtype of the features.
        device: the type of the device.
        gradient: whether a backward pass follows.
        route: "auto" for the cheapest, or the route to take.

    Example:
        >>> from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
        >>> make_plan(NewtonSchulzSqrt(5), 784, 512, dtype=torch.float16, gradient=True)
        Plan(route='covariance', algorithm='eigenvalues', dtype=torch.float32)
    """
    chosen = cheapest_route(function, locations, channels) if route == "auto" else route
    algorithm = choose_algorithm(function, channels if chosen == "covariance" else locations, device, gradient)
    return Plan(chosen, algorithm, choose_dtype(function, dtype))


def check_route(route: str) -> Route:
    """Returns ``route`` if it is one.

    Raises:
        PolycovError: if it is unknown.
    """
    for name in get_args(Route):
        if route == name:
            return name
    raise PolycovError(f"Unknown route {route!r}. {known(str(route), get_args(Route))}")


def price(function: Priced, size: int, algorithm: Algorithm, gradient: bool = False) -> float:
    """Returns the price of a function of a ``size`` × ``size`` matrix, in products of such matrices.

    An eigendecomposition costs 9 + 1100/size products and V f(λ) Vᵀ one more. The backward pass on eigenvalues costs
    four products, and at most 100/size for each step of the divided differences.
    """
    if algorithm == "products":
        return (function.products or 0) * (FORWARD_AND_BACKWARD if gradient else 1.0)
    forward = 10 + 1100 / size
    return forward + 4 + 100 * (function.slope_steps or 0) / size if gradient else forward


def route_cost(route: str, function: Priced, locations: int, channels: int) -> float:
    """Returns the multiply-adds per sample of the forward pass by one route.

    The function counts with its products if it has them, and on eigenvalues otherwise. So the route depends on the
    shape alone, and is the same on every device, in training and in evaluation.

    Args:
        route: "covariance" or "gram".
        function: the matrix function.
        locations: N.
        channels: C, after the moment.
    """
    algorithm: Algorithm = "eigenvalues" if function.products is None else "products"
    n, c = float(locations), float(channels)
    if route == "covariance":
        return n * c * c + price(function, channels, algorithm) * c**3
    rectangular = n * n * c + n * n * c + n * c * c  # S, r(S) X, Xᵀ(r(S) X)
    return RECTANGULAR * rectangular + price(function, locations, algorithm) * n**3


def cheapest_route(function: Priced, locations: int, channels: int) -> str:
    """Returns the cheaper of the routes "covariance" and "gram".

    Example:
        >>> from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
        >>> cheapest_route(NewtonSchulzSqrt(5), 784, 256), cheapest_route(NewtonSchulzSqrt(5), 49, 512)
        ('covariance', 'gram')
    """
    if "gram" not in function.routes:
        return "covariance"
    gram, covariance = (route_cost(route, function, locations, channels) for route in ("gram", "covariance"))
    return "gram" if gram < covariance else "covariance"


def choose_algorithm(function: Priced, size: int, device: str, gradient: bool) -> Algorithm:
    """Returns how to compute a function of a ``size`` × ``size`` matrix.

    On devices other than the CPU eigendecompositions are slow, and compilers cannot handle them; there, a function is
    computed on eigenvalues only if there is no other way.
    """
    if function.products is None:
        return "eigenvalues"
    if function.slope_steps is None or device != "cpu" or torch.compiler.is_compiling():
        return "products"
    size = max(size, 1)
    blocks = count_blocks(size, device)
    products = price(function, size, "products", gradient) * (blocks + 1) / (2 * blocks)  # of symmetric matrices
    eigenvalues = price(function, size, "eigenvalues", gradient) * (ONE_THREAD if torch.get_num_threads() == 1 else 1.0)
    return "eigenvalues" if eigenvalues < MARGIN * products else "products"


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Returns float32 for half precision, and any other dtype unchanged."""
    return torch.float32 if dtype in HALF else dtype


def choose_dtype(function: Priced, dtype: torch.dtype) -> torch.dtype:
    """Returns what to compute a function in: float64 if it needs that, otherwise float32 at least."""
    return torch.float64 if function.wide else at_least_float32(dtype)
