"""Moment Probing as a named method, against a loop over the definition."""

import torch

import polycov
from polycov.pooling.cross import SelfCross
from samples import features


def test_it_is_the_mean_and_the_cross_covariances_of_learned_reductions() -> None:
    x = features(2, 15, 5)
    pool = polycov.create_pool("moment-probing", 5, width=3, heads=2).double()
    assert pool.out_features == 5 + 2 * 3 * 3
    weight = next(module for module in pool.modules() if isinstance(module, SelfCross)).weight.detach()
    reductions = weight.unflatten(0, (2, 2, 3))  # heads, sides, width
    for sample, found in zip(x, pool(x).detach(), strict=True):
        centred = sample - sample.mean(0)
        matrices = []
        for left, right in reductions:
            total = torch.zeros(3, 3, dtype=torch.float64)
            for row in centred:
                total += torch.outer(left @ row, right @ row) / len(centred)
            matrices.append(total.flatten())
        second = torch.cat(matrices)
        torch.testing.assert_close(found, torch.cat([sample.mean(0), second / second.norm()]))
