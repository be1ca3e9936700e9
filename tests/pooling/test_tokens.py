import numpy as np
import pytest
import torch

import polycov
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
        (torch.rand(1, 2, 3), torch.ones(1, 2), "boolean mask .* got torch.float32"),
        (torch.rand(2, 2, 3), torch.tensor([[True, True], [False, False]]), r"hides every token of samples \[1\]"),
        (torch.rand(1, 2, 3).to(torch.float8_e4m3fn), None, "got torch.float8_e4m3fn"),
        (torch.rand(1, 2, 3).to(torch.complex64), None, "got torch.complex64"),
    ],
)
def test_wrong_features_and_masks_are_rejected(x: object, mask: object, message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        as_tokens(x, mask)  # type: ignore[arg-type]
