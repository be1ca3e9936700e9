import torch

from polycov.bench import ideas
from polycov.bench.peers import unrolled
from polycov.bench.tables import Shape
from polycov.pooling.functions.newton_schulz import newton_schulz
from samples import features, spd, unit_trace


def test_the_alternatives_compute_the_same() -> None:
    x = features(2, 30, 6)
    torch.testing.assert_close(ideas.folded(x), spd(2, 6, 30))
    a = unit_trace(spd(2, 6, 30))
    torch.testing.assert_close(unrolled(a, 5), ideas.fused(a, 5))
    torch.testing.assert_close(unrolled(a, 5), newton_schulz(a, 5))


def test_folding_the_mean_into_the_product_loses_digits() -> None:
    folded, ours = ideas.folding_error()
    assert ours < 1e-6 < 1e-4 < folded


def test_every_group_is_timed_against_its_first() -> None:
    rows = list(ideas.ideas(Shape(batch=2, locations=16, channels=8, dim=16), 1))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    assert len(groups) == ideas.GROUPS
    firsts = [next(row for row in rows if row["group"] == group) for group in groups]
    assert all(row["ratio"] == 1.0 for row in firsts)
