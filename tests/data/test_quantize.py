"""Features in fewer bytes."""

import pytest
import torch

from polycov.data.quantize import restore, store
from polycov.errors import NonFiniteError, PolycovError


@pytest.fixture
def features() -> torch.Tensor:
    x = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7).unsqueeze(1)
    x[3] = 0
    return x


def test_int8_is_wrong_by_half_a_step_at_most(features: torch.Tensor) -> None:
    kept, scale = store(features, "int8")
    assert kept.dtype == torch.int8
    step = features.abs().amax(1, keepdim=True) / 127
    assert bool(((restore(kept, scale) - features).abs() <= 0.5001 * step).all())
    assert bool((restore(kept, scale)[3] == 0).all())


def test_float32_is_kept_as_it_is_and_float16_to_three_digits(features: torch.Tensor) -> None:
    assert torch.equal(restore(*store(features, "float32")), features)
    some = features[2:3]
    torch.testing.assert_close(restore(*store(some, "float16")), some, rtol=1e-3, atol=1e-7)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="finite features that float16 can hold, got 100000"):
        store(torch.tensor([[1e5, 0.0]]), "float16")
    with pytest.raises(NonFiniteError, match="int8"):
        store(torch.tensor([[torch.nan, 0.0]]), "int8")
    with pytest.raises(PolycovError, match=r"Unknown dtype of stored features 'int4'\. Known: float16, float32, int8"):
        store(torch.zeros(1, 1), "int4")  # type: ignore[arg-type]
    with pytest.raises(PolycovError, match=r"tensor of shape \(B, D\), got \(3,\)"):
        store(torch.zeros(3), "int8")
