from types import SimpleNamespace

import pytest
import torch

import polycov
from polycov.models.local_features import StageShape, as_local_features, join_maps, local_channels, split_maps


@pytest.mark.parametrize(
    ("network", "prefix"),
    [
        (SimpleNamespace(num_prefix_tokens=5), 5),  # class and registers
        (SimpleNamespace(num_prefix_tokens=0, cls_token=torch.zeros(1)), 0),
        (SimpleNamespace(cls_token=torch.zeros(1)), 1),
        (SimpleNamespace(cls_token=None), 0),
        (SimpleNamespace(), 0),
    ],
)
def test_prefix_tokens_are_dropped(network: SimpleNamespace, prefix: int) -> None:
    tokens = torch.randn(2, 12, 3)
    assert torch.equal(as_local_features(network, tokens), tokens[:, prefix:])


def test_maps_with_channels_last_become_maps_with_channels_first() -> None:
    maps = torch.randn(2, 5, 6, 3)
    assert torch.equal(as_local_features(SimpleNamespace(output_fmt="NHWC"), maps), maps.permute(0, 3, 1, 2))
    assert as_local_features(SimpleNamespace(), maps) is maps


@pytest.mark.parametrize(("shape", "channels"), [((1, 7, 2, 1), 7), ((1, 2, 7), 7)])
def test_channels_of_maps_and_tokens(shape: tuple[int, ...], channels: int) -> None:
    assert local_channels("net", torch.zeros(shape)) == channels


def test_other_outputs_are_refused_with_what_they_are() -> None:
    with pytest.raises(polycov.PolycovError, match=r"'net' gives no local features: .*, got shape \(2, 9\)"):
        local_channels("net", torch.zeros(2, 9))
    with pytest.raises(polycov.PolycovError, match="got tuple"):
        local_channels("net", (torch.zeros(2, 9, 3, 3),))
    with pytest.raises(polycov.PolycovError, match=r"\(2, 9, 1, 1\): fewer than two locations"):
        local_channels("net", torch.zeros(2, 9, 1, 1))
    with pytest.raises(polycov.PolycovError, match="nothing to pool"):
        local_channels("net", torch.zeros(2, 1, 9))


def test_joined_stages_come_apart_again_whatever_their_sizes() -> None:
    for height in range(1, 30):
        for width in (1, min(height, 17), 13):
            stages = [torch.rand(1, 2, height, width), torch.rand(1, 3, 29, 17), torch.rand(1, 1, 7, 7)]
            shapes = [StageShape(x.shape[1], tuple(x.shape[2:])) for x in stages]
            for part, stage in zip(split_maps(join_maps(stages), shapes), stages, strict=True):
                assert torch.equal(part, stage)


def test_tokens_that_fit_no_map_cannot_stand_beside_maps() -> None:
    maps, tokens = torch.rand(2, 3, 4, 5), torch.rand(2, 20, 6)
    joined = join_maps([tokens, maps])
    assert torch.equal(joined[:, :6].flatten(2).mT, tokens)
    shapes = [StageShape(6, (20,)), StageShape(3, (4, 5))]
    assert torch.equal(split_maps(joined, shapes)[0].flatten(2).mT, tokens)
    with pytest.raises(polycov.PolycovError, match="19 tokens of one stage cannot stand beside the maps of others"):
        join_maps([tokens[:, 1:], maps])
