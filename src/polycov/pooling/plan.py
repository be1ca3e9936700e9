"""Which way to evaluate a pool: all ways give the same feature, so the cheapest is taken."""

from typing import Literal, get_args

from polycov.errors import PolycovError, known
from polycov.pooling.functions.base import MatrixFunction

Route = Literal["auto", "covariance", "gram", "paper"]


def check_route(route: str) -> Route:
    """Returns ``route`` if it is one.

    Raises:
        PolycovError: otherwise, with the known ones.
    """
    for name in get_args(Route):
        if route == name:
            return name
    raise PolycovError(f"Unknown route {route!r}. {known(str(route), get_args(Route))}")


def cost(route: str, function: MatrixFunction, locations: int, channels: int) -> float:
    """Returns the multiply-adds of a function of the statistic, by one route, for one sample.

    On the N × N side the products with the rows are counted 1.6 times: that is what makes the model agree with times
    measured where the two routes meet (``polycov bench --what routes``).

    Args:
        route: "covariance" (the C × C side) or "gram" (the N × N side).
        function: stage 2.
        locations: N.
        channels: C.
    """
    n, c = float(locations), float(channels)
    if route == "covariance":
        return n * c * c + function.cost(channels)
    rectangular = n * n * c + n * n * c + n * c * c  # S, r(S) X, Xᵀ(r(S) X)
    return 1.6 * rectangular + function.cost(locations)


def cheapest(function: MatrixFunction, locations: int, channels: int) -> str:
    """Returns the cheapest route.

    Example:
        >>> from polycov.pooling.functions.newton_schulz import NewtonSchulzSqrt
        >>> cheapest(NewtonSchulzSqrt(5), 784, 256), cheapest(NewtonSchulzSqrt(5), 49, 512)
        ('covariance', 'gram')
    """
    if "gram" not in function.routes:
        return "covariance"
    gram, covariance = (cost(route, function, locations, channels) for route in ("gram", "covariance"))
    return "gram" if gram < covariance else "covariance"
