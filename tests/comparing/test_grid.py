from collections.abc import Sequence

import pytest

from polycov.comparing.grid import (
    AVERAGE_LAST,
    DIMS,
    FEWER_CHANNELS,
    METHODS,
    Limits,
    Setting,
    check_dims,
    check_methods,
    grid,
    grid_notes,
)
from polycov.errors import PolycovError
from polycov.pooling.methods import method_options


def limits(channels: int = 8, samples: int = 25, width: int = 20) -> Limits:
    return Limits(channels, width, samples)


def cells(methods: Sequence[str], dims: list[int], seed: int = 0, **limit: int) -> list[tuple[str, int | None]]:
    settings = grid(methods, dims, 2, limits(**limit))
    assert len({setting.key for setting in settings}) == len(settings)
    assert len({setting.file_name for setting in settings}) == len(settings)
    return [(setting.method, setting.dim) for setting in settings if setting.seed == seed]


def test_every_method_has_every_dimension_it_can_have() -> None:
    methods, dims = ["average", "ipccp-ts", FEWER_CHANNELS, "ipccp-fit"], [10, 20, 40, 80]
    expected = [
        ("average", None),
        *(("ipccp-ts", dim) for dim in dims),
        *((FEWER_CHANNELS, dim) for dim in (10, 20)),  # 40 is more than the triangle of 8 channels, 36
        *(("ipccp-fit", dim) for dim in (10, 20, 25)),  # 40 and 80 are more than the training images
    ]
    assert cells(methods, dims, seed=0) == cells(methods, dims, seed=1) == expected
    assert grid_notes(methods, dims, limits()) == [
        "fewer-channels at 40, 80: skipped, since on all 8 channels (36 dimensions) it is isqrt-cov",
        "ipccp-fit at 40, 80: measured at 25 dimensions, as many as the smallest training split over the seeds has "
        "images",
    ]


def test_the_average_of_the_last_layer_is_not_measured_twice() -> None:
    methods = ["average", AVERAGE_LAST]
    assert cells(methods, [8]) == [("average", None), (AVERAGE_LAST, None)]
    same = Limits(8, 20, 25, last=True)
    assert [setting.method for setting in grid(methods, [8], 1, same)] == ["average"]
    assert grid_notes(methods, [8], same) == [
        "average-last: skipped, since it is average: these are the features of the last layer"
    ]
    assert Setting(AVERAGE_LAST, None, 0).pool == ("average", None)


def test_with_enough_images_the_grid_is_what_was_asked_for() -> None:
    expected: list[tuple[str, int | None]] = []
    for method in METHODS:
        free = method == FEWER_CHANNELS or (method != AVERAGE_LAST and "dim" in method_options(method))
        expected += [(method, dim) for dim in (DIMS if free else (None,))]
    assert cells(METHODS, list(DIMS), channels=128, samples=8192, width=320) == expected
    assert grid_notes(METHODS, DIMS, Limits(128, 320, 8192)) == []


def test_fitted_projections_of_the_birds_are_no_larger_than_their_training_images() -> None:
    expected = cells(METHODS, list(DIMS), channels=128, samples=8192, width=320)
    found = cells(METHODS, list(DIMS), channels=128, samples=1103, width=320)
    free = [cell for cell in expected if not cell[0].endswith("-fit")]
    assert [cell for cell in found if not cell[0].endswith("-fit")] == free
    for method in ("ipccp-fit", "mean-cov-fit", "auto-fit"):
        assert [dim for name, dim in found if name == method] == [512, 1024, 1103]


@pytest.mark.parametrize("dims", [[512], [512, 1024, 8192], [25, 26], [10**6]])
def test_dimensions_that_are_reduced_to_the_same_are_one_setting(dims: list[int]) -> None:
    assert cells(["ipccp-fit"], dims) == [("ipccp-fit", 25)]


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


def test_projections_in_specs_are_reduced_and_named_as_they_are_measured() -> None:
    spec = "covariance | sqrt(5) | count_sketch(512) | project({})"
    assert cells([spec.format(256)], [8], samples=300) == [(spec.format(256), None)]
    assert cells([spec.format(256), spec.format(100)], [8], samples=100) == [(spec.format(100), None)]
    (note,) = grid_notes([spec.format(256)], [8], limits(samples=100))
    assert note.startswith(f"{spec.format(256)}: measured at 100 dimensions, as many as the smallest training split")


def test_a_projection_is_no_larger_than_the_features_before_it() -> None:
    first, second = "average | project(64)", "covariance | sqrt(5) | triu | project(64)"
    expected = ["average | project(20)", "covariance | sqrt(5) | triu | project(36)"]  # channels, and their triangle
    assert [method for method, _ in cells([first, second], [8], samples=100)] == expected
    notes = grid_notes([first], [8], limits(samples=100))
    assert notes == [f"{first}: measured at 20 dimensions, as many as the features before the projection have"]
