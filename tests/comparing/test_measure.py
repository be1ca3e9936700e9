import numpy as np
import torch

from polycov.comparing.measure import pooling_time
from polycov.comparing.records import pack, unpack
from polycov.pooling.methods import create_pool


def test_flags_survive_packing() -> None:
    flags = torch.rand(37, generator=torch.Generator().manual_seed(0)) > 0.3
    np.testing.assert_array_equal(unpack(pack(flags), 37), flags.numpy())


def test_pooling_takes_time() -> None:
    assert 0 < pooling_time(create_pool("average", 4), 9, rounds=1) < 1000
