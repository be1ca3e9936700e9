import pytest

from polycov.comparing.grid import FEWER_CHANNELS, METHODS, Setting, check_dims, check_methods, grid
from polycov.errors import PolycovError


def test_every_method_has_every_dimension_it_can_have() -> None:
    settings = grid(["average", "ipccp-ts", FEWER_CHANNELS, "ipccp-fit"], [10, 20, 40], 2, channels=8, samples=25)
    expected = {
        ("average", None),
        *(("ipccp-ts", dim) for dim in (10, 20, 40)),
        *((FEWER_CHANNELS, dim) for dim in (10, 20)),  # 40 is more than the triangle of 8 channels, 36
        *(("ipccp-fit", dim) for dim in (10, 20)),  # 40 is more than the training images
    }
    assert {(s.method, s.dim) for s in settings if s.seed == 1} == expected
    assert len(settings) == 2 * len(expected)
    assert len({s.file_name for s in settings}) == len(settings)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 512, 8192])
def test_fewer_channels_have_the_largest_triangle_that_fits(dim: int) -> None:
    channels = Setting(FEWER_CHANNELS, dim, 0).channels(10**6)
    assert channels * (channels + 1) // 2 <= dim < (channels + 1) * (channels + 2) // 2
    assert Setting("isqrt-cov", None, 0).channels(128) == 128


def test_methods_and_dimensions_are_put_in_order() -> None:
    assert check_methods(METHODS) == list(METHODS)
    assert check_methods(["gem", "covariance|sqrt|triu"]) == ["gem", "covariance | sqrt(5) | triu"]
    assert check_dims([1024, 512, 512]) == [512, 1024]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["covariance|sqrt(5)|triu", "covariance | sqrt | triu"], "Duplicate method"),
        ([], "Expected methods"),
        (["gem", "gem"], "Duplicate method 'gem'"),
        (["ipcp-ts"], "Did you mean 'ipccp-ts'"),
    ],
)
def test_wrong_methods(methods: list[str], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        check_methods(methods)


@pytest.mark.parametrize("dims", [[], [0], [12, "x"], [-5], [1.5], [True]])
def test_wrong_dimensions(dims: list[int]) -> None:
    with pytest.raises(PolycovError, match="Expected dimensions such as 512 1024"):
        check_dims(dims)


def test_settings_that_differ_have_file_names_that_differ() -> None:
    specs = ["covariance | polynomial(0, 1, 0.5) | triu", "covariance | polynomial(0, 1, -0.5) | triu"]
    names = {Setting(spec, None, 0).file_name for spec in specs}
    assert len(names) == 2
    assert all(len(name) < 100 for name in names)


def test_projections_with_too_few_images_are_skipped_in_specs_too() -> None:
    spec = "covariance | sqrt(5) | count_sketch(512) | project(256)"
    assert {s.method for s in grid(["average", spec], [8], 1, channels=8, samples=100)} == {"average"}
    assert {s.method for s in grid(["average", spec], [8], 1, channels=8, samples=300)} == {"average", spec}
