import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.retrieval import retrieve


def features(count: int, seed: int) -> tuple[Tensor, Tensor]:
    centres = torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (count,), generator=generator)
    return centres[labels] + 1.3 * torch.randn(count, 8, generator=generator), labels


def naive(query: Tensor, label: int, gallery: Tensor, labels: Tensor) -> tuple[bool, bool, float]:
    """Whether the class is found at 1 and at 10, and scikit-learn's average precision."""
    a, b = query.double().numpy(), gallery.double().numpy()
    scores = b @ a / np.linalg.norm(b, axis=1) / np.linalg.norm(a)
    relevant = labels.numpy() == label
    best = sorted(range(len(b)), key=lambda j: -scores[j])
    return relevant[best[0]], any(relevant[best[:10]]), average_precision_score(relevant, scores)


def test_recall_and_average_precision_of_a_gallery() -> None:
    (queries, truth), (gallery, labels) = features(540, 1), features(90, 2)  # two blocks of queries
    result = retrieve(queries, truth, gallery, labels)
    expected = [naive(q, int(c), gallery, labels) for q, c in zip(queries, truth, strict=True)]
    assert result.recall(1) == pytest.approx(np.mean([row[0] for row in expected]))
    assert result.recall(10) == pytest.approx(np.mean([row[1] for row in expected]))
    np.testing.assert_allclose(result.precision.numpy(), [row[2] for row in expected], rtol=1e-9)


def test_without_a_gallery_a_query_does_not_find_itself() -> None:
    images, labels = features(70, 3)
    result = retrieve(images, labels)
    for i in range(len(images)):
        rest = torch.arange(len(images)) != i
        first, tenth, precision = naive(images[i], int(labels[i]), images[rest], labels[rest])
        assert (bool(result.found[1][i]), bool(result.found[10][i])) == (first, tenth)
        assert float(result.precision[i]) == pytest.approx(precision)


def test_a_class_without_images_to_find_is_an_error() -> None:
    images, labels = features(20, 4)
    with pytest.raises(PolycovError, match="some classes have none"):
        retrieve(images, torch.arange(20))
    with pytest.raises(PolycovError, match="a label for each"):
        retrieve(images, labels, images)
