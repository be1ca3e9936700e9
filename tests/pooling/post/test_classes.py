from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

import polycov
from polycov.pooling.post.classes import STRENGTH, class_components
from polycov.pooling.post.statistics import Statistics


def data(samples: int, columns: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -1, columns, dtype=torch.float64)
    labels = torch.arange(samples) % classes
    means = torch.randn(classes, columns, generator=generator, dtype=torch.float64)
    return torch.randn(samples, columns, generator=generator, dtype=torch.float64) * spectrum + means[
        labels
    ] + 3, labels


def collect(rows: torch.Tensor, labels: torch.Tensor, batch: int) -> Statistics:
    statistics = Statistics()
    for x, y in zip(rows.split(batch), labels.split(batch), strict=True):
        statistics.update(x, y)
    return statistics


def within(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    centred = torch.cat([rows[labels == c] - rows[labels == c].mean(0) for c in labels.unique()])
    return centred.mT @ centred


@pytest.mark.parametrize("batch", [7, 1000])
@pytest.mark.parametrize(("samples", "columns", "k"), [(60, 8, 8), (60, 8, 3), (12, 20, 6), (12, 20, 11)])
def test_directions_are_those_of_the_generalised_eigenvalue_problem(
    samples: int, columns: int, k: int, batch: int
) -> None:
    rows, labels = data(samples, columns)
    mean, directions = class_components(collect(rows, labels, batch), k)
    centred = rows - rows.mean(0)
    total = centred.mT @ centred
    damped = within(rows, labels) + STRENGTH * total.trace() / samples * torch.eye(columns, dtype=torch.float64)
    theirs = scipy.linalg.eigh(total.numpy(), damped.numpy())[1][:, ::-1][:, :k].T * samples**0.5
    np.testing.assert_allclose(mean, rows.mean(0))
    np.testing.assert_allclose(directions.abs(), np.abs(theirs), rtol=1e-5, atol=1e-7)
    products = directions @ damped @ directions.mT / samples
    np.testing.assert_allclose(products, np.eye(k), atol=1e-8)


def test_the_nearest_class_mean_is_discriminant_analysis_with_a_shrunk_covariance() -> None:
    rows, labels = data(60, 8)
    mean, directions = class_components(collect(rows, labels, 9), 8)
    ours = NearestCentroid().fit((rows - mean) @ directions.mT, labels)
    total = float((rows - rows.mean(0)).square().sum())

    class Shrunk:
        """The covariance of one class; scikit-learn averages them."""

        def fit(self, x: np.ndarray[Any, Any]) -> "Shrunk":
            self.covariance_ = np.cov(x.T, bias=True) + STRENGTH * total / 60 / 60 * np.eye(8)
            return self

    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Shrunk()).fit(rows.numpy(), labels.numpy())
    fresh = data(300, 8)[0] * 1.5 - 1
    predictions = ours.predict((fresh - mean) @ directions.mT)
    assert len(set(predictions)) == 3
    np.testing.assert_array_equal(predictions, theirs.predict(fresh.numpy()))


def test_two_classes_one_class_and_more_classes_than_dimensions() -> None:
    for classes in (1, 2, 10):
        rows, labels = data(40, 6, classes)
        _, directions = class_components(collect(rows, labels, 9), 4)
        assert directions.shape == (4, 6)
        assert torch.isfinite(directions).all()


def test_classes_are_told_apart_in_the_first_directions() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 30, generator=generator, dtype=torch.float64) * torch.linspace(3, 0.1, 30)
    labels = torch.arange(200) % 2
    rows[:, 25] += labels  # in a direction that principal components come to last
    pool = polycov.create_pool("average | project(2, fit=classes)", 30).double().fit([(rows[:, None], labels)])
    plain = polycov.create_pool("average | project(2)", 30).double().fit([(rows[:, None], labels)])
    gaps = []
    for feature in (pool(rows[:, None]).detach(), plain(rows[:, None]).detach()):
        gap = feature[labels == 1].mean(0) - feature[labels == 0].mean(0)
        gaps.append(float(gap.norm() / feature[labels == 0].std()))
    assert gaps[0] > 1 > gaps[1]


def test_labels_must_be_given() -> None:
    pool = polycov.create_pool("average | project(2, fit=classes)", 4)
    x = torch.rand(10, 5, 4)
    wrong: list[list[Any]] = [[x], [(x, torch.rand(10))], [(x, torch.arange(10)), x]]
    for batches in wrong:
        with pytest.raises(polycov.PolycovError, match="A fit to classes needs labels: expected batches"):
            pool.fit(batches)
