from pathlib import Path

import numpy as np
import torch

from polycov.comparing.measure import is_time_of_pooling, pooling_time
from polycov.comparing.records import pack, unpack
from polycov.comparing.reduced_features import ReducedFeatures
from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.pooling.methods import create_pool
from polycov.system.memory_budget import Memory
from polycov.training.config import NetworkOptions
from polycov.training.extraction import Extraction
from polycov.training.features import build_backbone


def test_flags_survive_packing() -> None:
    flags = torch.rand(37, generator=torch.Generator().manual_seed(0)) > 0.3
    np.testing.assert_array_equal(unpack(pack(flags), 37), flags.numpy())


def test_pooling_takes_time() -> None:
    assert 0 < pooling_time(create_pool("average", 4), 9, rounds=1) < 1000


def test_pools_see_the_same_whether_channels_are_stored_reduced_or_not(trees: Path, tmp_path: Path) -> None:
    """First-order features from all channels; principal components of components are those of the channels."""
    data = read_data(trees)
    backbone = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    run = Extraction(backbone, data, Preprocessing(64, 64), tmp_path, workers=0).run
    full, reduced = ReducedFeatures(run()), ReducedFeatures(run(24, ["average", "gem(3)"]))
    for method, channels in (("average", 0), ("gem", 0), ("isqrt-cov", 6), ("average | l2", 0)):
        features = []
        for source in (full, reduced):
            tokens = source.tokens(data, channels) if channels else source.first_order(data, method)
            features.append(create_pool(method, tokens["test"].channels)(torch.cat([*tokens["test"]])))
        one, other = features
        scale = (one @ one.mT).abs().max()
        torch.testing.assert_close(one @ one.mT / scale, other @ other.mT / scale, rtol=0, atol=2e-3)


def test_the_time_of_pooling_is_that_of_all_locations(trees: Path, tmp_path: Path) -> None:
    data = read_data(trees)
    backbone = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    reduced = ReducedFeatures(
        Extraction(backbone, data, Preprocessing(64, 64), tmp_path, workers=0).run(5, ["average"])
    )
    tokens = reduced.first_order(data, "average")
    assert tokens["train"].locations == 1
    assert not is_time_of_pooling(tokens["train"], reduced)  # it would be that of pooling a single location
    assert is_time_of_pooling(reduced.tokens(data, 0)["train"], reduced)


def test_tokens_that_do_not_fit_are_read_each_time_and_are_the_same(trees: Path, tmp_path: Path) -> None:
    data = read_data(trees)
    backbone = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    extracted = Extraction(backbone, data, Preprocessing(64, 64), tmp_path, workers=0).run()
    for channels in (0, 5):
        kept = ReducedFeatures(extracted).tokens(data, channels)
        read = ReducedFeatures(extracted, Memory(10_000)).tokens(data, channels)
        assert (kept["train"].kept, read["train"].kept) == (True, False)
        for _ in range(2):  # they can be read several times
            torch.testing.assert_close(torch.cat([*read["train"]]), torch.cat([*kept["train"]]), rtol=0, atol=0)


def test_fractions_survive_packing() -> None:
    scores = torch.rand(37, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(unpack(pack(scores), 37), scores.numpy())
