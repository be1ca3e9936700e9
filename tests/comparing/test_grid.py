import pytest

from polycov.comparing.grid import FEWER, METHODS, Setting, grid, parse_dims, parse_methods
from polycov.errors import PolycovError


def test_every_method_has_every_dimension_it_can_have() -> None:
    settings = grid(["average", "ipccp-ts", FEWER, "ipccp-fit"], [10, 20, 40], 2, channels=8, samples=25)
    found = {(s.method, s.dim) for s in settings if s.seed == 1}
    assert found == {
        ("average", None),
        *(("ipccp-ts", dim) for dim in (10, 20, 40)),
        *((FEWER, dim) for dim in (10, 20)),  # 40 is more than the triangle of 8 channels, 36
        *(("ipccp-fit", dim) for dim in (10, 20)),  # 40 is more than the training pictures
    }
    assert len(settings) == 2 * len(found)
    assert len({s.key for s in settings}) == len(settings)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 512, 8192])
def test_fewer_channels_have_the_largest_triangle_that_fits(dim: int) -> None:
    channels = Setting(FEWER, dim, 0).channels(10**6)
    assert channels * (channels + 1) // 2 <= dim < (channels + 1) * (channels + 2) // 2
    assert Setting("isqrt-cov", None, 0).channels(128) == 128


def test_lists_are_parsed_and_the_default_is_valid() -> None:
    assert parse_methods(",".join(METHODS)) == list(METHODS)
    assert parse_methods("gem, covariance | power(0.5, 8) | triu") == ["gem", "covariance | power(0.5, 8) | triu"]
    assert parse_methods("covariance|sqrt|triu") == ["covariance | sqrt(5) | triu"]
    assert parse_dims("1024, 512,512") == [512, 1024]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("covariance|sqrt(5)|triu,covariance | sqrt | triu", "is there twice"),
        ("", "Expected methods"),
        ("gem,gem", "'gem' is there twice"),
        ("ipcp-ts", "Did you mean 'ipccp-ts'"),
    ],
)
def test_wrong_methods(methods: str, message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        parse_methods(methods)


@pytest.mark.parametrize("dims", ["", "0", "12,x", "-5", "1.5"])
def test_wrong_dimensions(dims: str) -> None:
    with pytest.raises(PolycovError, match="Expected dimensions such as 512,1024"):
        parse_dims(dims)


def test_settings_that_differ_have_keys_that_differ() -> None:
    specs = ["covariance | polynomial(0, 1, 0.5) | triu", "covariance | polynomial(0, 1, -0.5) | triu"]
    keys = {Setting(spec, None, 0).key for spec in specs}
    assert len(keys) == 2
    assert all(len(key) < 100 for key in keys)


def test_projections_that_cannot_be_fitted_are_left_out_whatever_they_are_called() -> None:
    spec = "covariance | sqrt(5) | count_sketch(512) | project(256)"
    assert {s.method for s in grid(["average", spec], [8], 1, channels=8, samples=100)} == {"average"}
    assert {s.method for s in grid(["average", spec], [8], 1, channels=8, samples=300)} == {"average", spec}
