import pytest
import torch

from polycov.data.quantize import dequantize, quantize
from polycov.errors import NonFiniteError, PolycovError


@pytest.fixture
def features() -> torch.Tensor:
    x = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7).unsqueeze(1)
    x[3] = 0
    return x


def test_the_error_of_int8_is_at_most_half_a_step(features: torch.Tensor) -> None:
    codes, scale = quantize(features, "int8")
    assert codes.dtype == torch.int8
    step = features.abs().amax(1, keepdim=True) / 127
    assert bool(((dequantize(codes, scale) - features).abs() <= 0.5001 * step).all())
    assert bool((dequantize(codes, scale)[3] == 0).all())


def test_float32_is_exact_and_float16_has_three_digits(features: torch.Tensor) -> None:
    assert torch.equal(dequantize(*quantize(features, "float32")), features)
    codes, scale = quantize(features[2:3], "float16")
    assert codes.dtype == torch.float16
    torch.testing.assert_close(dequantize(codes, scale), features[2:3], rtol=1e-3, atol=1e-7)


def test_invalid_features_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="finite features in the range of float16, got 100000"):
        quantize(torch.tensor([[1e5, 0.0]]), "float16")
    with pytest.raises(NonFiniteError, match="int8"):
        quantize(torch.tensor([[torch.nan, 0.0]]), "int8")
    with pytest.raises(PolycovError, match=r"Unknown feature dtype 'int4'\. .*Known: float16, float32, int8"):
        quantize(torch.zeros(1, 1), "int4")  # type: ignore[arg-type]
    with pytest.raises(PolycovError, match=r"tensor of shape \(B, D\), got \(3,\)"):
        quantize(torch.zeros(3), "int8")
    with pytest.raises(PolycovError, match=r"tensor of shape \(B, D\), got list"):
        quantize([[1.0]], "int8")  # type: ignore[arg-type]
