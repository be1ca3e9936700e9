from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError
from polycov.inference.knn import NEIGHBOURS, choose_neighbours, predict_knn


def clusters(count: int, seed: int, spread: float = 1.2) -> tuple[Tensor, Tensor]:
    centres = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (count,), generator=generator)
    return centres[labels] + spread * torch.randn(count, 9, generator=generator), labels


def sklearn_predictions(queries: Tensor, gallery: Tensor, labels: Tensor, k: int) -> np.ndarray[Any, Any]:
    votes = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=lambda d: np.exp(-d / 0.07))
    votes.fit(gallery.double().numpy(), labels.numpy())
    predicted: np.ndarray[Any, Any] = votes.predict(queries.double().numpy())
    return predicted


def test_votes_are_those_of_scikit_learn() -> None:
    (gallery, labels), (queries, _) = clusters(700, 1), clusters(600, 2)  # more than one block of queries
    for k, predicted in predict_knn(queries, labels, gallery).items():
        np.testing.assert_array_equal(predicted.numpy(), sklearn_predictions(queries, gallery, labels, k))


def test_without_a_gallery_each_query_is_left_out_of_its_own() -> None:
    features, labels = clusters(80, 3)
    predicted = predict_knn(features, labels, k=(1, 5))
    for i in range(len(features)):
        rest = torch.arange(len(features)) != i
        for k in (1, 5):
            expected = sklearn_predictions(features[i : i + 1], features[rest], labels[rest], k)
            assert int(predicted[k][i]) == int(expected[0])


def test_a_small_gallery_votes_as_a_whole_and_k_is_the_best() -> None:
    (gallery, labels), (queries, truth) = clusters(12, 4), clusters(200, 5)
    predicted = predict_knn(queries, labels, gallery, k=(12, 50))
    torch.testing.assert_close(predicted[12], predicted[50])
    k, correct = choose_neighbours(queries, truth, gallery, labels)
    accuracies = {c: int((p == truth).sum()) for c, p in predict_knn(queries, labels, gallery).items()}
    assert accuracies[k] == max(accuracies.values()) == int(correct.sum())
    assert k == min(c for c in NEIGHBOURS if accuracies[c] == accuracies[k])


def test_what_cannot_be_compared_is_an_error() -> None:
    queries, labels = clusters(9, 6)
    with pytest.raises(PolycovError, match="a label for each of the 9"):
        predict_knn(queries, labels[:3])
    with pytest.raises(PolycovError, match="at least 1, got"):
        predict_knn(queries, labels, k=(0,))
    with pytest.raises(PolycovError, match="with 9 dimensions"):
        predict_knn(queries, labels, torch.ones(9, 4))
    with pytest.raises(NonFiniteError):
        predict_knn(queries / 0, labels)
    with pytest.raises(PolycovError, match="a gallery"):
        predict_knn(queries[:1], labels[:1])
