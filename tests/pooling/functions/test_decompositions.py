import numpy as np
import pytest
import torch

from polycov import PolycovError
from polycov import functional as F
from polycov.pooling.functions.decompositions import cholesky, eigh
from samples import spd


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_bad_matrix_spoils_no_other(bad: float) -> None:
    c = spd(3, 4)
    values, vectors = np.linalg.eigh(c.numpy())
    factor = torch.from_numpy(np.linalg.cholesky(c.numpy()))
    c[1, 0, 2] = c[1, 2, 0] = bad
    ours, basis = eigh(c)
    torch.testing.assert_close(ours[[0, 2]], torch.from_numpy(values)[[0, 2]])
    torch.testing.assert_close(basis[[0, 2]].abs(), torch.from_numpy(vectors)[[0, 2]].abs())
    torch.testing.assert_close(cholesky(c)[[0, 2]], factor[[0, 2]])
    assert basis[1].isnan().all()
    assert cholesky(c)[1].isnan().all()


def test_a_matrix_that_is_not_positive_definite_is_an_error_of_the_library() -> None:
    with pytest.raises(PolycovError, match="Expected positive definite matrices"):
        F.log_cholesky(-torch.eye(3).unsqueeze(0))
