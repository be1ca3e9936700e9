import torch

import polycov
from polycov import functional as F
from samples import features


def test_triu_preserves_inner_products() -> None:
    rows = features(2, 9, 5)
    a, b = rows.mT @ rows
    va, vb = F.triu(torch.stack([a, b]))
    torch.testing.assert_close(va @ vb, (a * b).sum())


def test_the_modules_are_the_triangle_and_all_entries() -> None:
    rows = features(2, 9, 5)
    matrices = rows.mT @ rows
    triangle = polycov.create_pool("bilinear | identity | triu", 5).double()
    torch.testing.assert_close(triangle(rows), F.triu(matrices))
    everything = polycov.create_pool("bilinear | identity | flatten", 5).double()
    torch.testing.assert_close(everything(rows), matrices.flatten(1))
