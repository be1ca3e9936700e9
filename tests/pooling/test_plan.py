"""The plan: the cheaper route, the faster algorithm, and a dtype that is wide enough."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import polycov
from polycov.pooling.functions import log, power, sqrt
from polycov.pooling.functions.base import MatrixFunction
from polycov.pooling.functions.sqrt_minimax import MinimaxSqrt
from polycov.pooling.plan import (
    Algorithm,
    Plan,
    Route,
    cheapest_route,
    check_route,
    choose_algorithm,
    make_plan,
    price,
    route_cost,
)
from polycov.pooling.pool import SecondOrderPool

EXACT = [sqrt("exact"), power(0.3), log(), sqrt(13)]
ITERATED = [sqrt(5), power(0.7, 12), log(16)]


def flops(pool: torch.nn.Module, x: torch.Tensor) -> int:
    """The operations that torch itself counts."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        pool(x)
    return counter.get_total_flops()


@pytest.mark.parametrize(("locations", "channels"), [(4, 32), (9, 32), (64, 32), (200, 16)])
@pytest.mark.parametrize("function", ["sqrt(5)", "sqrt(1)", "power(0.7, 12)", "identity"])
def test_the_cheapest_route_is_the_one_with_fewer_operations(function: str, locations: int, channels: int) -> None:
    x = torch.rand(1, locations, channels)
    counts = {}
    for route in ("covariance", "gram"):
        pool = SecondOrderPool(channels, f"covariance | {function} | flatten", route=check_route(route))
        counts[route] = flops(pool, x)
    auto = SecondOrderPool(channels, f"covariance | {function} | flatten")
    assert flops(auto, x) == min(counts.values())
    chosen = auto.route_for(locations)
    assert counts[chosen] == min(counts.values())


@pytest.mark.parametrize(("locations", "channels"), [(4, 32), (100, 16)])  # products of whole matrices
@pytest.mark.parametrize("route", ["covariance", "gram"])
def test_the_cost_of_a_route_is_what_torch_counts(route: Route, locations: int, channels: int) -> None:
    pool = SecondOrderPool(channels, "covariance | sqrt(5) | flatten", route=route)
    counted = flops(pool, torch.rand(1, locations, channels)) / 2  # a multiply-add is two operations
    cost = route_cost(route, pool.function, locations, channels)
    assert counted <= cost <= 1.6 * counted


@pytest.mark.parametrize(
    ("locations", "channels", "route"),
    [
        (49, 512, "gram"),
        (196, 768, "gram"),
        (225, 256, "gram"),
        (240, 256, "covariance"),
        (256, 256, "covariance"),
        (784, 256, "covariance"),
        (3136, 64, "covariance"),
    ],
)
@pytest.mark.parametrize("function", [sqrt(5), sqrt("exact")], ids=["sqrt(5)", "sqrt(exact)"])
def test_the_smaller_side_is_taken_unless_they_are_nearly_equal(
    function: MatrixFunction, locations: int, channels: int, route: str
) -> None:
    assert cheapest_route(function, locations, channels) == route


def test_a_function_without_a_quotient_is_computed_on_the_covariance_side() -> None:
    assert cheapest_route(sqrt(5, gradient="lyapunov"), 4, 512) == "covariance"


@pytest.mark.parametrize("function", ITERATED + EXACT, ids=lambda f: type(f).__name__)
def test_the_price_of_eigenvalues_is_the_same_for_all_functions(function: MatrixFunction) -> None:
    assert price(function, 256, "eigenvalues") == pytest.approx(10 + 1100 / 256)


@pytest.mark.parametrize(
    ("size", "iterations", "gradient", "algorithm"),
    [
        (32, 5, True, "products"),
        (96, 5, True, "products"),
        (128, 5, True, "eigenvalues"),
        (256, 5, True, "eigenvalues"),
        (256, 3, True, "products"),
        (512, 5, True, "eigenvalues"),
        (32, 5, False, "products"),
        (512, 5, False, "products"),
        (2048, 5, False, "products"),
        (512, 2, True, "products"),
        (512, 12, False, "eigenvalues"),
        (32, 13, False, "eigenvalues"),
    ],
)
def test_eigenvalues_are_used_where_they_are_faster(
    size: int, iterations: int, gradient: bool, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert choose_algorithm(sqrt(iterations), size, "cpu", gradient) == algorithm


def test_eigenvalues_are_used_earlier_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, algorithm in ((1, "eigenvalues"), (2, "products"), (8, "products")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert choose_algorithm(sqrt(5), 96, "cpu", True) == algorithm


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_other_devices_use_products_wherever_they_can(device: str) -> None:
    assert choose_algorithm(sqrt(5), 512, "cpu", True) == "eigenvalues"
    assert choose_algorithm(sqrt(5), 512, device, True) == "products"
    assert all(choose_algorithm(function, 512, device, True) == "eigenvalues" for function in EXACT)


def test_compilers_get_products_wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choose_algorithm(sqrt(5), 512, "cpu", True) == "products"
    assert choose_algorithm(sqrt("exact"), 512, "cpu", True) == "eigenvalues"


def test_the_algorithm_depends_on_the_size_of_the_side_that_is_taken() -> None:
    on_gram = make_plan(sqrt(5), 49, 512, dtype=torch.float32, gradient=True)
    assert on_gram == Plan("gram", "products", torch.float32)
    on_covariance = make_plan(sqrt(5), 49, 512, dtype=torch.float32, gradient=True, route="covariance")
    assert on_covariance == Plan("covariance", "eigenvalues", torch.float32)


@pytest.mark.parametrize("route", ["covariance", "gram", "paper"])
def test_a_given_route_is_taken(route: Route) -> None:
    for locations in (4, 500):
        assert make_plan(sqrt(5), locations, 64, dtype=torch.float32, route=route).route == route


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_functions_with_products_are_computed_in_float32_at_least(dtype: torch.dtype, expected: torch.dtype) -> None:
    for function in ITERATED:
        for locations in (4, 500):
            assert make_plan(function, locations, 64, dtype=dtype).dtype == expected


WIDE = [
    *EXACT,
    sqrt(8),
    sqrt(12),
    sqrt(5, gradient="lyapunov"),
    MinimaxSqrt(3, 9, 9),
    MinimaxSqrt(9, gradient="lyapunov"),
]


@pytest.mark.parametrize("function", WIDE, ids=lambda f: type(f).__name__)
def test_functions_that_amplify_rounding_errors_are_computed_in_float64(function: MatrixFunction) -> None:
    for locations in (4, 500):
        assert make_plan(function, locations, 64, dtype=torch.float16).dtype == torch.float64
    assert not any(narrow.wide for narrow in (sqrt(7), MinimaxSqrt(9), MinimaxSqrt(5, 5)))


def test_a_pool_plans_from_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SecondOrderPool(512, "covariance | sqrt(5) | triu")
    x = torch.zeros(1, 784, 512)
    assert pool.plan(x) == Plan("covariance", "products", torch.float32)
    assert pool.plan(x.requires_grad_()) == Plan("covariance", "eigenvalues", torch.float32)
    with torch.no_grad():
        assert pool.plan(x) == Plan("covariance", "products", torch.float32)
    exact = SecondOrderPool(16, "gaussian | sqrt(exact) | triu")
    assert exact.plan(torch.zeros(1, 100, 16)) == Plan("covariance", "eigenvalues", torch.float64)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("locations", [49, 784])
def test_the_pool_computes_what_it_plans(locations: int, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SecondOrderPool(256, "covariance | sqrt(5) | triu")
    x = torch.rand(1, locations, 256, requires_grad=gradient)
    plan = pool.plan(x)
    calls: list[tuple[str, int, str]] = []
    for name, route in (("forward", "covariance"), ("quotient", "gram")):
        original = getattr(pool.function, name)

        def recorded(
            matrix: torch.Tensor, root: torch.Tensor, algorithm: str, route: str = route, original: object = original
        ) -> object:
            calls.append((route, matrix.shape[-1], algorithm))
            assert callable(original)
            return original(matrix, root, algorithm)

        monkeypatch.setattr(pool.function, name, recorded)
    pool(x)
    assert calls == [(plan.route, min(locations, 256), plan.algorithm)]


def test_check_route_names_the_known_routes() -> None:
    assert check_route("gram") == "gram"
    with pytest.raises(polycov.PolycovError, match=r"Unknown route .grams.\. .*Known: auto, covariance, gram, paper\."):
        check_route("grams")
