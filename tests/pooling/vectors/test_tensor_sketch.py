import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import PolynomialCountSketch

from polycov.pooling.pool import SecondOrderPool
from samples import features


@pytest.mark.parametrize("dim", [1, 7, 32])
@pytest.mark.parametrize("route", ["covariance", "paper"])
def test_compact_bilinear_pooling_is_the_sketch_of_scikit_learn_summed_over_locations(route: str, dim: int) -> None:
    theirs = PolynomialCountSketch(degree=2, n_components=dim, random_state=0)
    x = features(3, 11, 5)
    theirs.fit(x[0].numpy())
    pool = SecondOrderPool(5, f"bilinear | identity | tensor_sketch({dim})", route=route).double()  # type: ignore[arg-type]
    state = pool.state_dict()
    state["vector.hashes"] = torch.from_numpy(theirs.indexHash_.astype(np.int64))
    state["vector.signs"] = torch.from_numpy(theirs.bitHash_.astype(np.float64))
    pool.load_state_dict(state)
    expected = np.stack([theirs.transform(sample.numpy()).sum(0) for sample in x])
    np.testing.assert_allclose(pool(x).numpy(), expected, rtol=1e-10, atol=1e-10)
