from typing import Any

import pytest
import torch

from polycov.errors import PolycovError
from polycov.pooling.batches import read_batches

X = torch.zeros(3, 5, 4)
MASK = torch.ones(3, 5, dtype=torch.bool)
SOFT = torch.rand(3, 5)
LABELS = torch.tensor([2, 0, 1])
INDICES = torch.tensor([7, 8, 9])


@pytest.mark.parametrize(
    ("batch", "mask", "labels"),
    [
        (X, None, None),
        ((X,), None, None),
        ((X, LABELS), None, LABELS),
        ([X, LABELS.to(torch.uint8)], None, LABELS),
        ((X, LABELS == 0), None, (LABELS == 0).long()),
        ((X, MASK), MASK, None),
        ((X, MASK, LABELS), MASK, LABELS),
        ((X, SOFT, LABELS), SOFT, LABELS),
        ((X, None, LABELS), None, LABELS),
        ((X, LABELS, INDICES), None, LABELS),
        ((X, torch.rand(3)), None, None),  # targets of a regression are no classes
        ((X, LABELS[:2]), None, None),
        ((X, ["a", "b", "c"], LABELS), None, LABELS),
    ],
)
def test_masks_and_labels_are_known_by_type_and_shape(batch: Any, mask: Any, labels: Any) -> None:
    (read,) = read_batches([batch])
    assert read.features is X
    assert read.weights is mask
    assert (read.labels is None) == (labels is None)
    if read.labels is not None:
        assert torch.equal(read.labels, labels)
        assert read.labels.dtype == torch.int64


@pytest.mark.parametrize("batch", [{"image": X}, (), "x", None])
def test_other_batches_are_rejected(batch: Any) -> None:
    with pytest.raises(PolycovError, match="Expected batches to be tensors or tuples of tensors"):
        list(read_batches([batch]))
