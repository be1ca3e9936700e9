import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge as SklearnRidge
from torch import nn

from polycov.errors import PolycovError
from polycov.system.memory_budget import Memory
from polycov.system.rows import BLOCK
from polycov.training import ridge as ridge_module
from polycov.training.calibration import calibrate
from polycov.training.ridge import STRENGTHS, Ridge, fit_ridge, squared_error


def clusters(count: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % classes
    return 3 + centres[labels] + 1.5 * torch.randn(count, features, generator=generator), labels


def scikit_learns(x: torch.Tensor, y: torch.Tensor, strength: float) -> SklearnRidge:
    rows = x.double().numpy()
    unit = np.square(rows - rows.mean(0)).sum() / len(rows)
    return SklearnRidge(alpha=strength * unit).fit(rows, np.eye(int(y.max()) + 1)[y.numpy()])


def scikit_learns_choice(
    x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, w: torch.Tensor
) -> tuple[float, float, np.ndarray]:
    """The strength with the best accuracy on validation, of equal ones the least squared error; a loop."""
    best = None
    for strength in STRENGTHS:
        outputs = scikit_learns(x, y, strength).predict(v.double().numpy())
        correct = outputs.argmax(1) == w.numpy()
        value = (correct.mean(), -np.square(outputs - np.eye(outputs.shape[1])[w.numpy()]).mean())
        if best is None or value > best[0]:
            best = (value, strength, correct)
    assert best is not None
    return best[1], best[0][0], best[2]


@pytest.mark.parametrize(("count", "features"), [(60, 20), (60, 90), (700, 40), (60, 1100)])  # both sides, many blocks
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_choice_and_last_fit_are_scikit_learns(count: int, features: int, dtype: torch.dtype) -> None:
    (x, y), (v, w) = clusters(count, features, 4, seed=1), clusters(40, features, 4, seed=2)
    found = fit_ridge(x.to(dtype), y, v.to(dtype), w, 4)
    strength, accuracy, correct = scikit_learns_choice(x, y, v, w)
    assert (found.strength, found.val_accuracy) == (strength, accuracy)
    np.testing.assert_array_equal(found.val_correct.numpy(), correct)
    model = scikit_learns(torch.cat([x, v]), torch.cat([y, w]), strength)
    scale = float(found.weight.norm()) / np.linalg.norm(model.coef_)  # the temperature of `calibrate`
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    np.testing.assert_allclose(found.weight.mT.numpy() / scale, model.coef_, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.bias.numpy() / scale, model.intercept_, rtol=0, atol=20 * tolerance)


def test_without_a_last_fit_validation_is_only_chosen_on() -> None:
    (x, y), (v, w) = clusters(60, 30, 4, seed=1), clusters(40, 30, 4, seed=2)
    found = fit_ridge(x, y, v, w, 4, refit=False)
    model = scikit_learns(x, y, found.strength)
    scale = float(found.weight.norm()) / np.linalg.norm(model.coef_)
    np.testing.assert_allclose(found.weight.mT.numpy() / scale, model.coef_, rtol=0, atol=1e-4)


def test_the_last_fit_may_have_other_features() -> None:
    (x, y), (v, w) = clusters(60, 30, 4, seed=1), clusters(40, 30, 4, seed=2)
    found = fit_ridge(x, y, v, w, 4, [2 * x[:, :9], 2 * v[:, :9]])
    model = scikit_learns(2 * torch.cat([x, v])[:, :9], torch.cat([y, w]), found.strength)
    scale = float(found.weight.norm()) / np.linalg.norm(model.coef_)
    np.testing.assert_allclose(found.weight.mT.numpy() / scale, model.coef_, rtol=0, atol=1e-4)


@pytest.mark.parametrize("features", [30, 1500])
def test_little_memory_gives_the_same(features: int) -> None:
    (x, y), (v, w) = clusters(600, features, 4, seed=1), clusters(550, features, 4, seed=2)
    one = fit_ridge(x, y, v, w, 4)
    other = fit_ridge(x, y, v, w, 4, memory=Memory(8 * 4 * 2 * 1150**2 if features > 1000 else 80_000))
    assert (one.strength, one.val_accuracy) == (other.strength, other.val_accuracy)
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-5, atol=1e-6)


def test_matrices_that_do_not_fit_are_refused_with_what_to_do() -> None:
    x, y = clusters(600, 500, 4, seed=1)
    with pytest.raises(PolycovError, match=r"probe of 500 dimensions needs matrices of 500 × 500 .* --memory 17MB or"):
        fit_ridge(x[:500], y[:500], x[500:], y[500:], 4, memory=Memory(1_000_000))


def test_float32_is_left_where_it_is_not_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image is so long that rounding errors of its products exceed the regularisation."""
    used: list[bool] = []
    fit = ridge_module._fit

    def watched(*arguments: object, exact: bool) -> Ridge:
        used.append(exact)
        return fit(*arguments, exact=exact)  # type: ignore[arg-type]

    monkeypatch.setattr(ridge_module, "_fit", watched)
    (x, y), (v, w) = clusters(200, 30, 4, seed=1), clusters(100, 30, 4, seed=2)
    fit_ridge(x, y, v, w, 4)
    assert used == [False]
    x[0] *= 1e4
    found = fit_ridge(x, y, v, w, 4)
    assert used == [False, False, True]
    assert found.strength == scikit_learns_choice(x, y, v, w)[0]


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
    assert float(squared_error(outputs, labels)) == pytest.approx(naive * outputs.numel(), rel=1e-12)


def test_the_scale_of_many_images_is_computed_in_parts() -> None:
    outputs = torch.randn(3 * BLOCK + 5, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=2 * outputs).sample()
    assert calibrate(outputs, labels) == pytest.approx(2.0, rel=0.15)
