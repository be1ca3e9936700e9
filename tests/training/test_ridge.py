import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge as SklearnRidge
from torch import nn

from polycov.errors import PolycovError
from polycov.training.ridge import ROWS, STRENGTHS, _RidgePath, _squared_error, calibrate, fit_ridge


def clusters(count: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % classes
    return 3 + centres[labels] + 1.5 * torch.randn(count, features, generator=generator), labels


@pytest.mark.parametrize(("count", "features"), [(60, 20), (30, 80)])  # both sides of the dual
def test_ridge_is_scikit_learns(count: int, features: int) -> None:
    x, y = clusters(count, features, 4, seed=1)
    path = _RidgePath(x, y, 4)
    weight, bias = path.solve(0.3)
    model = SklearnRidge(alpha=0.3 * path.unit).fit(x.double().numpy(), np.eye(4)[y.numpy()])
    np.testing.assert_allclose(weight.mT.numpy(), model.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), model.intercept_, rtol=1e-6, atol=1e-9)
    for strength, outputs in zip((0.3, 3.0), path.predict(x[:7] + 1, (0.3, 3.0)), strict=True):
        model = SklearnRidge(alpha=strength * path.unit).fit(x.double().numpy(), np.eye(4)[y.numpy()])
        np.testing.assert_allclose(outputs.numpy(), model.predict((x[:7] + 1).double().numpy()), rtol=1e-6, atol=1e-9)


def test_the_strength_is_the_best_on_validation_and_the_last_fit_has_all_features() -> None:
    (x, y), (v, w) = clusters(60, 30, 4, seed=1), clusters(40, 30, 4, seed=2)
    ridge = fit_ridge(x, y, v, w, 4)
    outputs = zip(STRENGTHS, _RidgePath(x, y, 4).predict(v, STRENGTHS), strict=True)
    accuracies = {strength: float((o.argmax(1) == w).double().mean()) for strength, o in outputs}
    assert ridge.val_accuracy == max(accuracies.values()) == accuracies[ridge.strength]
    weight, _ = _RidgePath(torch.cat([x, v]), torch.cat([y, w]), 4).solve(ridge.strength)
    scale = float(ridge.weight.norm() / weight.norm())
    torch.testing.assert_close(ridge.weight.double(), weight * scale, rtol=1e-4, atol=1e-5)


def test_logits_are_scaled_to_be_probabilities() -> None:
    (x, y), (v, w), (t, u) = (clusters(400, 30, 4, seed) for seed in (1, 2, 3))
    ridge = fit_ridge(x, y, v, w, 4)
    probability = (t @ ridge.weight + ridge.bias).softmax(1).max(1)
    gap = float(probability.values.mean() - (probability.indices == u).float().mean())
    assert abs(gap) < 0.05  # as sure as right


def test_the_scale_minimises_the_softened_cross_entropy() -> None:
    outputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = (2 * outputs + torch.randn(30, 4, generator=torch.Generator().manual_seed(1))).argmax(1)

    def loss(scale: float) -> float:
        return float(nn.functional.cross_entropy(scale * outputs, labels, label_smoothing=1 / 31))

    best = minimize_scalar(loss, bounds=(1e-3, 100), method="bounded", options={"xatol": 1e-8})
    assert calibrate(outputs, labels) == pytest.approx(best.x, rel=1e-5)


def test_the_scale_of_samples_from_the_probabilities_is_found() -> None:
    outputs = torch.randn(20000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.multinomial((2.5 * outputs).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert calibrate(outputs, labels) == pytest.approx(2.5, rel=0.03)


def test_a_few_images_that_are_all_correct_do_not_make_certain() -> None:
    y = torch.arange(60) % 4
    x = 10.0 * nn.functional.one_hot(y, 8)
    ridge = fit_ridge(x[:40], y[:40], x[40:], y[40:], 4)
    probabilities = (x @ ridge.weight + ridge.bias).softmax(1)
    assert ridge.val_accuracy == 1
    assert float(probabilities.amin()) > 1e-3
    assert 0.9 < float(probabilities.amax()) < 0.99  # 20 validation images: one mistake in 21, or fewer


def test_a_probe_needs_validation() -> None:
    x, y = clusters(20, 5, 2, seed=1)
    with pytest.raises(PolycovError, match="chooses its strength on validation"):
        fit_ridge(x, y, x[:0], y[:0], 2)


def test_the_squared_error_is_that_to_the_indicators() -> None:
    outputs = torch.randn(30, 7, dtype=torch.float64)
    labels = torch.arange(30) % 7
    naive = float((outputs - torch.eye(7, dtype=torch.float64)[labels]).square().mean())
    assert _squared_error(outputs, labels) == pytest.approx(naive, rel=1e-12)


def test_the_scale_of_many_images_is_computed_in_parts() -> None:
    outputs = torch.randn(3 * ROWS + 5, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=2 * outputs).sample()
    assert calibrate(outputs, labels) == pytest.approx(2.0, rel=0.15)
