import numpy as np
import pytest
import torch

from polycov.pooling.post.statistics import Statistics


def collect(rows: torch.Tensor, labels: torch.Tensor | None, batch: int) -> Statistics:
    statistics = Statistics()
    for begin in range(0, len(rows), batch):
        part = slice(begin, begin + batch)
        statistics.update(rows[part], None if labels is None else labels[part])
    return statistics


@pytest.mark.parametrize("samples", [5, 40])  # fewer and more than columns
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_statistics_agree_with_numpy_also_after_an_affine_map(samples: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(samples, 6, generator=generator, dtype=torch.float64) + 3
    labels = torch.arange(samples) % 3
    weight, bias = torch.randn(4, 6, generator=generator).double(), torch.arange(4.0).double()

    def stage(x: torch.Tensor) -> torch.Tensor:
        return x @ weight.mT + bias

    before = collect(rows, labels, batch)
    for statistics, data in ((before, rows), (before.after(stage), stage(rows))):
        mean, variances = statistics.spread()
        np.testing.assert_allclose(mean, data.numpy().mean(0))
        np.testing.assert_allclose(variances, data.numpy().var(0), rtol=1e-9)
        sums = statistics.class_sums()
        assert {name: n for name, (n, _) in sums.items()} == {c: int((labels == c).sum()) for c in range(3)}
        for name, (_, total) in sums.items():
            np.testing.assert_allclose(total, data[labels == name].sum(0))
    before.fold()
    assert before.scatter is not None
    np.testing.assert_allclose(before.scatter / samples, np.cov(rows.numpy().T, bias=True), atol=1e-12)


def test_rows_without_labels_belong_to_no_class() -> None:
    statistics = collect(torch.rand(4, 6), torch.zeros(4, dtype=torch.int64), 2)
    assert statistics.labelled
    statistics.update(torch.rand(2, 6))
    assert not statistics.labelled
    assert statistics.class_sums() == {}
