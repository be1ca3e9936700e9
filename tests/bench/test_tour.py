import sys

import pytest
import torch

import polycov
from polycov.bench import tour


def test_the_tour_names_every_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tour", "--channels", "8", "--side", "6", "--dim", "24"])
    tour.main()
    lines = capsys.readouterr().out.splitlines()
    for name in polycov.list_methods():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        compact = name.startswith(("cbp", "monet", "ipccp"))
        assert ("%" in line) == compact


def test_kernel_error_is_zero_for_the_same_features_and_falls_with_the_dimension() -> None:
    maps = tour.correlated_maps(40, 8, 6)
    x, train = maps[:8], maps[8:]
    full = polycov.create_pool("isqrt-cov", 8)(x)
    assert tour.kernel_error(full, full) == 0
    errors = [tour.agreement("ipccp-ts", 8, dim, x, train) or 0.0 for dim in (4, 64, 1024)]
    assert errors[0] > errors[1] > errors[2] > 0
    assert tour.agreement("isqrt-cov", 8, 4, x, train) is None


def test_maps_are_repeatable() -> None:
    assert torch.equal(tour.correlated_maps(2, 4, 3), tour.correlated_maps(2, 4, 3))
