"""The scikit-learn transformer: NumPy in and out, in pipelines and searches, also on signals."""

import importlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
from pyriemann.estimation import Covariances
from pyriemann.geometry.base import sqrtm
from pyriemann.tangentspace import TangentSpace
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import polycov
from polycov.errors import MissingDependencyError
from polycov.pooling.methods import method_options
from polycov.sklearn import SecondOrderTransformer

Array = np.ndarray[Any, Any]
Samples = tuple[Array, Array]


@pytest.fixture
def samples() -> Samples:
    """Two classes with equal means that differ in the correlation of two channels."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 40, 5)), np.arange(80) % 2
    x[y == 1, :, 1] += 0.7 * x[y == 1, :, 0]
    return x, y


@pytest.mark.parametrize("method", [m for m in polycov.list_methods() if not m.startswith("class-token")])
def test_the_transformer_is_the_pool_in_batches_of_any_size(method: str, samples: Samples) -> None:
    x, y = samples
    dim = 12 if "dim" in method_options(method) else None
    names = np.array(["ash", "elm"])[y]
    transformer = SecondOrderTransformer(method, batch_size=7, seed=3, dim=dim).fit(x, names)
    pool = polycov.create_pool(method, 5, seed=3, dim=dim).eval()
    if pool.fittable:
        pool.double().fit([(torch.from_numpy(x), torch.from_numpy(y))])
    vectors = transformer.transform(x)
    assert vectors.dtype == np.float64
    rtol, atol = (1e-5, 1e-5) if pool.fittable else (1e-10, 1e-12)
    np.testing.assert_allclose(vectors, pool.double()(torch.from_numpy(x)).detach().numpy(), rtol=rtol, atol=atol)
    assert transformer.transform(x.astype(np.float32)).dtype == np.float32
    names = transformer.get_feature_names_out()
    assert names.shape == (vectors.shape[1],)
    assert names[0] == "secondordertransformer0"


def test_signals_have_channels_before_times(samples: Samples) -> None:
    x, _ = samples
    tokens = SecondOrderTransformer("isqrt-cov").fit_transform(x)
    signals = SecondOrderTransformer("isqrt-cov", layout="signals").fit_transform(x.transpose(0, 2, 1))
    np.testing.assert_allclose(signals, tokens, rtol=1e-12)
    maps = SecondOrderTransformer("isqrt-cov").fit_transform(x.transpose(0, 2, 1).reshape(80, 5, 8, 5))
    np.testing.assert_allclose(maps, tokens, rtol=1e-12)


@pytest.mark.skipif(not hasattr(np.ndarray, "mT"), reason="pyRiemann needs NumPy 2")
def test_the_transformer_agrees_with_pyriemann_on_signals(samples: Samples) -> None:
    signals = samples[0].transpose(0, 2, 1)
    centred = signals - signals.mean(2, keepdims=True)
    matrices = centred @ centred.transpose(0, 2, 1) / signals.shape[2]
    np.testing.assert_allclose(Covariances("scm").fit_transform(centred), matrices, rtol=1e-10)
    spec = "covariance | log(exact) | triu"
    logs = SecondOrderTransformer(spec, layout="signals").fit_transform(signals)
    at_identity = TangentSpace(metric="riemann")
    at_identity.reference_ = np.eye(5)
    np.testing.assert_allclose(logs, at_identity.transform(matrices), rtol=1e-8, atol=1e-10)
    roots = SecondOrderTransformer("covariance | sqrt(exact) | flatten", layout="signals").fit_transform(signals)
    np.testing.assert_allclose(roots.reshape(80, 5, 5), sqrtm(matrices), rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("error")
def test_arrays_may_have_any_memory_layout_and_numbers_may_be_from_numpy(samples: Samples) -> None:
    x, _ = samples
    expected = SecondOrderTransformer("ipccp-ts", dim=8, seed=3).fit_transform(x)
    fixed = np.asfortranarray(x)
    fixed.flags.writeable = False
    numbers: dict[str, Any] = {"dim": np.int64(8), "seed": np.int64(3)}
    transformer = SecondOrderTransformer("ipccp-ts", **numbers)
    np.testing.assert_allclose(transformer.fit_transform(fixed), expected)
    np.testing.assert_allclose(transformer.transform(x.tolist()), expected)
    np.testing.assert_allclose(transformer.transform(x[:1]), expected[:1])


@pytest.mark.slow
def test_a_grid_search_over_method_and_dimension(samples: Samples) -> None:
    x, y = samples
    pipeline = make_pipeline(SecondOrderTransformer(), StandardScaler(), LogisticRegression(C=0.1))
    grid = {
        "secondordertransformer__method": ["average", "isqrt-cov", "ipccp-ts", "ipccp-fit"],
        "secondordertransformer__dim": [6, 12],
    }
    search = GridSearchCV(pipeline, grid, cv=4, error_score="raise").fit(x[:60], y[:60])
    assert len(search.cv_results_["params"]) == 8
    assert search.best_params_["secondordertransformer__method"] != "average"  # which cannot tell the classes apart
    assert search.score(x[60:], y[60:]) > 0.85
    names = search.best_estimator_[:-1].get_feature_names_out()
    assert names[0] == "secondordertransformer0"


def test_clones_and_pickles_give_the_same_results(samples: Samples) -> None:
    x, y = samples
    pipeline = make_pipeline(SecondOrderTransformer("ipccp-fit", dim=6, seed=2), RidgeClassifier()).fit(x, y)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.decision_function(x), pipeline.decision_function(x))
    fresh = clone(pipeline)
    assert fresh[0].get_params() == pipeline[0].get_params()
    with pytest.raises(NotFittedError):
        fresh[0].transform(x)
    np.testing.assert_allclose(fresh.fit(x, y).decision_function(x), pipeline.decision_function(x))
    assert repr(fresh[0]) == "SecondOrderTransformer(dim=6, method='ipccp-fit', seed=2)"


def test_wrong_arguments_are_rejected_with_a_clear_message(samples: Samples) -> None:
    x, _ = samples
    with pytest.raises(polycov.PolycovError, match=r"shape \(samples, locations, channels\) or .*, got \(80, 40\)"):
        SecondOrderTransformer().fit(x[:, :, 0])
    with pytest.raises(polycov.PolycovError, match="Expected 5 channels, as in fit, got 4"):
        SecondOrderTransformer("isqrt-cov").fit(x).transform(x[:, :, :4])
    with pytest.raises(polycov.SpecError, match="Unknown method 'isqrtcov'"):
        SecondOrderTransformer("isqrtcov").fit(x)
    with pytest.raises(polycov.PolycovError, match="Unknown layout 'signal'"):
        SecondOrderTransformer(layout="signal").fit(x)  # type: ignore[arg-type]
    with pytest.raises(polycov.PolycovError, match="batch_size"):
        SecondOrderTransformer(batch_size=0).fit(x)
    with pytest.raises(polycov.PolycovError, match="The device 'foo' is not available"):
        SecondOrderTransformer(device="foo").fit(x)
    bad = x.copy()
    bad[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        SecondOrderTransformer().fit(bad)
    with pytest.raises(ValueError, match="could not convert"):
        SecondOrderTransformer().fit(np.full((2, 3, 4), "a"))


def test_a_device_may_be_chosen_automatically(samples: Samples) -> None:
    x, _ = samples
    expected = SecondOrderTransformer("isqrt-cov").fit_transform(x)
    np.testing.assert_allclose(SecondOrderTransformer("isqrt-cov", device="auto").fit_transform(x), expected, rtol=1e-6)


def test_without_scikit_learn_the_import_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polycov.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'polycov\[sklearn\]'"):
        importlib.import_module("polycov.sklearn")


def test_weights_and_masks_of_arrays(samples: Samples) -> None:
    x, _ = samples
    w = np.random.default_rng(1).uniform(size=x.shape[:2])
    for weights in (w, w > 0.3, w.astype(np.float32)):
        transformer = SecondOrderTransformer("ipccp-fit", dim=3, batch_size=30)
        vectors = transformer.fit_transform(x, weights=weights)
        pool = polycov.create_pool("ipccp-fit", 5, dim=3).double().fit([(torch.tensor(x), torch.tensor(weights))])
        expected = pool(torch.tensor(x), torch.tensor(weights)).detach().numpy()
        np.testing.assert_allclose(abs(vectors), abs(expected), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(transformer.transform(x, weights), vectors)
        assert abs(transformer.transform(x) - vectors).max() > 1e-3
    with pytest.raises(polycov.PolycovError, match="weights of 80 samples, got those of 79"):
        transformer.transform(x, w[1:])
    with pytest.raises(polycov.PolycovError, match=r"weights of at least 0"):
        transformer.transform(x, -w)
