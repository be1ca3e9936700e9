import re

import numpy as np
import pytest
import torch

import polycov
from polycov import functional as F
from polycov.pooling.tokens import as_tokens, count_tokens, hide, maps_to_tokens


def test_token_i_of_a_map_is_location_i_in_row_order() -> None:
    x = torch.rand(2, 3, 4, 5)
    expected = x.numpy().transpose(0, 2, 3, 1).reshape(2, 20, 3)
    assert np.array_equal(maps_to_tokens(x).numpy(), expected)
    assert np.array_equal(as_tokens(x)[0].numpy(), expected)


def test_tokens_are_returned_unchanged() -> None:
    x = torch.rand(2, 20, 3)
    assert maps_to_tokens(x) is x
    assert as_tokens(x) == (x, None)


def test_a_mask_of_a_map_is_the_mask_of_its_locations() -> None:
    x = torch.rand(2, 3, 4, 5)
    mask = torch.rand(2, 4, 5) > 0.3
    for given in (mask, mask.flatten(1)):
        flat = as_tokens(x, given)[1]
        assert flat is not None
        assert torch.equal(flat, mask.flatten(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_an_integer_mask_becomes_boolean(dtype: torch.dtype) -> None:
    x = torch.rand(2, 3, 4)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    given = as_tokens(x, mask.to(dtype))[1]
    assert given is not None
    assert given.dtype == torch.bool
    assert torch.equal(given, mask)


@pytest.mark.parametrize("values", [[[0, 2]], [[-1, 1]], [[0, 255]]])
def test_integers_other_than_0_and_1_are_no_mask(values: list[list[int]]) -> None:
    low, high = values[0]
    with pytest.raises(
        polycov.PolycovError, match=f"or integers 1 and 0 in its place; got integers from {low} to {high}"
    ):
        as_tokens(torch.rand(1, 2, 3), torch.tensor(values))


def test_the_functions_of_moments_take_integer_masks_too() -> None:
    x, mask = torch.rand(2, 3, 4), torch.tensor([[True, False, True], [True, True, False]])
    for function in (F.bilinear, F.covariance, F.gaussian, F.average, F.maximum):
        assert torch.equal(function(x, mask.long()), function(x, mask))
    assert torch.equal(F.gem(x, 3.0, mask.long()), F.gem(x, 3.0, mask))


@pytest.mark.parametrize(
    ("shape", "calls"),
    [
        ((2, 5, 6, 7), ["x.permute(0, 3, 1, 2)"]),
        ((2, 7, 30), ["x.mT"]),
        ((7, 5, 6), ["x.unsqueeze(0)"]),
        ((7, 7, 6), ["x.mT", "x.unsqueeze(0)"]),
        ((30, 7), ["x.unsqueeze(0)"]),
        ((7, 30), ["x.mT.unsqueeze(0)"]),
        ((7, 7), ["x.unsqueeze(0)", "x.mT.unsqueeze(0)"]),
        ((2, 7, 3, 5, 6), ["x.flatten(3)"]),
        ((2, 3, 5, 6, 7), ["x.flatten(1, 3)"]),
        ((2, 5, 6), []),
        ((2, 5, 6, 4), []),
        ((7,), []),
    ],
)
def test_a_wrong_layout_is_recognised_by_its_channels_and_the_proposed_calls_work(
    shape: tuple[int, ...], calls: list[str]
) -> None:
    x = torch.rand(shape)
    with pytest.raises(polycov.PolycovError) as error:
        as_tokens(x, channels=7)
    proposed = re.findall(r"use (x(?:\.mT|\.\w+\([^)]*\))+)", str(error.value))
    assert proposed == calls
    for call in proposed:
        assert as_tokens(eval(call, {"x": x}), channels=7)[0].shape[-1] == 7


def test_tokens_may_be_of_any_layout_if_the_channels_are_not_known() -> None:
    assert as_tokens(torch.rand(2, 7, 30))[0].shape == (2, 7, 30)
    with pytest.raises(polycov.PolycovError, match=r"got \(30, 7\)\.$"):
        as_tokens(torch.rand(30, 7))


def test_hide_replaces_hidden_tokens_even_nan_and_blocks_their_gradient() -> None:
    mask = torch.tensor([[True, False, True]])
    x = torch.tensor([[[1.0, 2.0], [torch.nan, torch.inf], [3.0, 4.0]]], requires_grad=True)
    hidden = hide(x, mask)
    assert hidden.tolist() == [[[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]]
    (grad,) = torch.autograd.grad(hidden.sum(), x)
    assert grad.tolist() == [[[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]]
    assert hide(x, None) is x


def test_count_tokens_counts_those_that_exist() -> None:
    x = torch.rand(2, 3, 4, dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert count_tokens(x, mask).tolist() == [2.0, 1.0]
    assert count_tokens(x, None).tolist() == [3.0, 3.0]
    assert count_tokens(x, mask).dtype == count_tokens(x, None).dtype == torch.float64


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        ([[1.0]], None, "as a torch.Tensor, got list"),
        (torch.rand(2, 3), None, r"shape \(B, C, H, W\) or \(B, N, C\), got \(2, 3\)"),
        (torch.rand(1, 3, 0, 2), None, r"at least one location, got features of shape \(1, 3, 0, 2\)"),
        (torch.rand(1, 2, 3, 4), torch.ones(1, 4, 3, dtype=torch.bool), r"\(1, 12\) or \(1, 3, 4\)"),
        (torch.rand(1, 2, 3, 4), [True] * 12, "got list"),
        (torch.rand(1, 2, 3), torch.ones(1, 3), r"weights of shape \(1, 2\).* got torch.float32 of shape \(1, 3\)"),
        (torch.rand(2, 2, 3), torch.tensor([[True, True], [False, False]]), r"hides every token of samples \[1\]"),
        (torch.rand(1, 2, 3).to(torch.float8_e4m3fn), None, "got torch.float8_e4m3fn"),
        (torch.rand(1, 2, 3).to(torch.complex64), None, "got torch.complex64"),
    ],
)
def test_wrong_features_and_masks_are_rejected(x: object, mask: object, message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        as_tokens(x, mask)  # type: ignore[arg-type]
