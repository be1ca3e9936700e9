import pytest
import torch

from polycov.bench import tables
from polycov.bench.reference import plain_isqrt_cov
from polycov.pooling.pool import SecondOrderPool

SMALL = tables.Shape(batch=2, locations=16, channels=8, dim=16)


def test_modules_follow_the_shape_and_the_route_in_the_name() -> None:
    pool = SMALL.module("ipccp-ts, gram")
    assert isinstance(pool, SecondOrderPool)
    assert (pool.channels, pool.out_features, pool.route) == (8, 16, "gram")
    x = SMALL.features()
    assert x.shape == (2, 8, 16, 1)
    torch.testing.assert_close(SMALL.module(tables.PLAIN)(x), plain_isqrt_cov(x))


def test_a_route_is_affordable_unless_it_is_far_from_the_cheapest() -> None:
    wide = tables.Shape(locations=3136, channels=64)
    assert not wide.affordable("ipccp-ts, gram")
    assert wide.affordable("ipccp-ts, covariance")
    assert wide.affordable("ipccp-ts")
    assert tables.Shape(locations=256, channels=256).affordable("ipccp-ts, gram")


def test_measure_reports_time_ratio_and_memory_in_both_modes() -> None:
    ticks: list[None] = []
    rows = tables.measure(SMALL, [tables.PLAIN, "isqrt-cov"], 2, lambda: ticks.append(None), memory=True)
    assert [(row["method"], row["mode"]) for row in rows] == [
        (name, mode) for mode in ("eval", "train") for name in (tables.PLAIN, "isqrt-cov")
    ]
    assert len(ticks) == 2 * 3
    assert all(row["milliseconds"] > 0 and row["peak_mib"] > 0 for row in rows)
    assert [row["ratio"] for row in rows if row["method"] == tables.PLAIN] == [1.0, 1.0]


def test_growth_varies_one_size_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "GROWTH", {"locations": (4, 9), "dim": (8, 16)})
    rows = list(tables.growth(SMALL, 1))
    assert {(row["varied"], row[row["varied"]]) for row in rows} == {
        ("locations", 4),
        ("locations", 9),
        ("dim", 8),
        ("dim", 16),
    }
    assert {row["channels"] for row in rows} == {8}


def test_dims_compares_with_the_smallest_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "DIMS", (8, 16))
    rows = list(tables.dims(SMALL, 1))
    assert {row["dim"] for row in rows} == {8, 16}
    assert all(row["ratio"] == 1.0 for row in rows if row["dim"] == 8)


def test_routes_reports_the_chosen_and_the_fastest_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROUTE_GRID", ((4, 8), (16, 4)))
    rows = list(tables.routes(SMALL, 1))
    assert [(row["locations"], row["chosen"]) for row in rows if row["mode"] == "eval"] == [
        (4, "gram"),
        (16, "covariance"),
    ]
    for row in rows:
        fastest = min(row["covariance_ms"], row["gram_ms"])
        assert row[f"{row['best']}_ms"] == fastest
        assert row["chosen_over_best"] == row[f"{row['chosen']}_ms"] / fastest
