import pytest
import torch

import polycov
from polycov.bench.tour import agreement, correlated_maps, tour
from polycov.commands.tour import main

METHODS = [name for name in polycov.list_methods() if not name.startswith("class-token")]
COMPACT = ("cbp", "monet", "ipccp")


def test_the_tour_measures_every_method() -> None:
    rows = {row.method: row for row in tour(8, 6, 24)}
    assert list(rows) == METHODS
    for name, row in rows.items():
        assert (row.kernel_error is not None) == name.startswith(COMPACT)
        assert row.milliseconds > 0
        assert row.spec == polycov.create_pool(row.spec, 8).spec
    assert rows["ipccp-ts"].dimensions == 24
    assert rows["isqrt-cov"].dimensions == 36


def test_the_command_prints_a_line_per_method(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--channels", "4", "--side", "3", "--dim", "8"])
    lines = capsys.readouterr().out.splitlines()
    for name in METHODS:
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert ("%" in line) == name.startswith(COMPACT)


def test_the_kernel_error_of_a_sketch_falls_with_its_dimension() -> None:
    maps = correlated_maps(40, 8, 6)
    x, train = maps[:8], maps[8:]
    errors = [agreement("ipccp-ts", 8, dim, x, train) or 0.0 for dim in (4, 64, 1024)]
    assert errors[0] > errors[1] > errors[2] > 0
    assert agreement("isqrt-cov", 8, 4, x, train) is None


def test_a_fitted_projection_of_full_rank_has_no_kernel_error() -> None:
    maps = correlated_maps(80, 3, 4)
    x, train = maps[:8], maps[8:]
    error = agreement("ipccp-fit", 3, 6, x, train)  # the triangle has 6 entries, so nothing is lost
    assert error is not None
    assert error < 1e-4


def test_maps_are_reproducible() -> None:
    assert torch.equal(correlated_maps(2, 4, 3), correlated_maps(2, 4, 3))
