from typing import Any

import pytest
import torch

from polycov.errors import NonFiniteError, SpecError
from polycov.pooling.fitting import supported_size
from polycov.pooling.methods import create_pool, list_methods, method_options


@pytest.mark.parametrize(("dim", "samples"), [(512, 300), (300, 300), (None, 300), (64, 9)])
def test_a_dimension_is_reduced_to_the_samples(dim: int | None, samples: int) -> None:
    assert supported_size("ipccp-fit", dim, samples=samples) == ("ipccp-fit", samples)


def test_what_can_be_fitted_is_left_alone() -> None:
    assert supported_size("ipccp-fit", None, samples=512) == ("ipccp-fit", None)
    assert supported_size("ipccp-fit", 256, samples=512, channels=8) == ("ipccp-fit", 256)
    assert supported_size("mean-cov-fit", 256, samples=512, channels=8) == ("mean-cov-fit", 256)
    for name in list_methods():
        dim = 64 if "dim" in method_options(name) else None
        if not name.endswith("-fit"):
            assert supported_size(name, dim, samples=1, channels=4) == (name, dim)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("average | l2 | project(64)", "average | l2 | project(5)"),
        ("covariance | sqrt(5) | triu | project(64) | l2", "covariance | sqrt(5) | triu | project(15) | l2"),
        ("bilinear | identity | flatten | project(64)", "bilinear | identity | flatten | project(20)"),
        ("[average | project(9), max] | balance | project(64)", "[average | project(5), max] | balance | project(10)"),
    ],
)
def test_specs_are_reduced_to_samples_or_features(spec: str, expected: str) -> None:
    reduced, dim = supported_size(spec, samples=20, channels=5)
    assert (reduced, dim) == (expected, None)
    create_pool(reduced, 5)  # can be built; the first could not


def test_an_option_that_a_method_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="'isqrt-cov' takes only iterations, got dim=8"):
        supported_size("isqrt-cov", 8, samples=10)


@pytest.mark.parametrize("method", ["auto-fit", "mean-cov", "ipccp-fit"])
def test_samples_that_cannot_be_fitted_to_are_named(method: str) -> None:
    x, labels = torch.rand(6, 8, 3, 3), torch.arange(6) % 2
    x[4, 0, 0, 0] = torch.nan
    size: dict[str, Any] = {} if method == "mean-cov" else {"dim": 4}
    pool = create_pool(method, 8, **size)
    with pytest.raises(NonFiniteError, match=r"NaN or Inf: samples \[4\]"):
        pool.fit([(x[:3], labels[:3]), (x[3:], labels[3:])])
    assert not pool.is_fitted
