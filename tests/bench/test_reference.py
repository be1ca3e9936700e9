import torch

from polycov.bench.reference import plain_isqrt_cov
from polycov.bench.tables import Shape
from samples import features


def test_the_reference_is_isqrt_cov_without_the_factor_root_two() -> None:
    x = features(2, 36, 5).mT.unflatten(-1, (6, 6))
    ours = Shape(channels=5, dtype="float64").module("isqrt-cov")(x)
    rows, columns = torch.triu_indices(5, 5)
    torch.testing.assert_close(plain_isqrt_cov(x) * torch.where(rows == columns, 1.0, 2**0.5), ours, rtol=1e-6, atol=0)
