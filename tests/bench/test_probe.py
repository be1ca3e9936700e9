import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from polycov.bench.probe import NAIVE, OURS, generate, naive_probe, probe_times
from polycov.training.ridge import STRENGTHS


@pytest.mark.parametrize("dims", [30, 300])
def test_the_reference_is_scikit_learns(dims: int) -> None:
    problem = generate(150, dims, 4)
    strength, predictions = naive_probe(problem)
    assert strength in STRENGTHS
    (x, y), (v, w), (t, _) = problem.train, problem.val, problem.test
    rows = torch.cat([x, v]).double().numpy()
    unit = np.square(rows - rows.mean(0)).sum() / len(rows)
    model = Ridge(alpha=strength * unit).fit(rows, np.eye(4)[torch.cat([y, w]).numpy()])
    np.testing.assert_array_equal(predictions.numpy(), model.predict(t.double().numpy()).argmax(1))


def test_both_are_timed_and_agree() -> None:
    rows = list(probe_times(1, lambda: None, ((150, 30, 4), (150, 300, 4))))
    assert [row["probe"] for row in rows] == [NAIVE, OURS] * 2
    for naive, ours in zip(rows[::2], rows[1::2], strict=True):
        assert naive["ratio"] == 1.0
        assert ours["strength"] == naive["strength"]
        assert ours["other_predictions"] == 0
        assert naive["test_accuracy"] > 0.4
