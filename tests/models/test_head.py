import pytest
import torch
from torch import nn

import polycov
from polycov.models.head import (
    GroupedReduction,
    PoolingHead,
    Reduction,
    default_channels,
    linear_parts,
    make_classifier,
)


@pytest.mark.parametrize(
    ("pool", "width", "probe", "channels"),
    [
        ("isqrt-cov", 512, False, 256),
        ("isqrt-cov", 40, False, 256),
        ("average", 512, False, 256),
        ("isqrt-cov", 512, True, 128),
        ("covariance | sqrt(5) | triu", 40, True, 40),
        ("average", 512, True, 0),
        ("gem | l2", 512, True, 0),
    ],
)
def test_default_channels_are_those_of_the_head(pool: str, width: int, probe: bool, channels: int) -> None:
    assert default_channels(pool, width, probe=probe) == channels
    head = PoolingHead(width, pool, 2, None) if probe else PoolingHead(width, pool, 2)
    assert head.pool.channels == (channels or width)
    assert isinstance(head.reduction, nn.Identity) == (channels == 0)


@pytest.mark.parametrize("reduction", ["relu", "linear"])
def test_tokens_and_maps_are_reduced_alike(reduction: str) -> None:
    head = PoolingHead(6, "isqrt-cov", 3, 4, reduction=reduction).eval()  # type: ignore[arg-type]
    maps = torch.randn(2, 6, 3, 5)
    tokens = maps.flatten(2).mT
    torch.testing.assert_close(head.reduce(tokens), head.reduce(maps).flatten(2).mT)
    torch.testing.assert_close(head.classify(tokens), head.classify(maps))
    assert head.classify(maps).shape == (2, 3)


def test_no_classes_give_the_pooled_feature() -> None:
    head = PoolingHead(6, "average", 0, 0, drop=0.5).eval()
    maps = torch.randn(2, 6, 3, 5)
    assert torch.equal(head.classify(maps), head.pool(maps))
    assert isinstance(make_classifier(6, 0), nn.Identity)


def test_mistakes_end_in_a_sentence() -> None:
    with pytest.raises(
        polycov.PolycovError, match=r"Unknown reduction 'line'. Did you mean 'linear'. Known: linear, relu"
    ):
        PoolingHead(6, "average", 2, 4, reduction="line")  # type: ignore[arg-type]
    with pytest.raises(polycov.PolycovError, match="channels of the reduction to be a positive integer, got -1"):
        PoolingHead(6, "average", 2, -1)
    with pytest.raises(polycov.PolycovError, match="num_classes of the classifier to be a positive integer, got -2"):
        PoolingHead(6, "average", -2, 4)
    with pytest.raises(polycov.SpecError, match="Unknown method 'averag'"):
        PoolingHead(6, "averag", 2, None)


@pytest.mark.parametrize("kind", ["relu", "linear"])
def test_each_stage_is_reduced_by_itself(kind: Reduction) -> None:
    pool = "[stage(last) | average, covariance | sqrt(5) | triu]"
    head = PoolingHead({"3": 3, "last": 8}, pool, 2, 5, reduction=kind).eval()
    assert isinstance(head.reduction, GroupedReduction)
    assert head.pool.groups == {"3": 3, "last": 5}  # a stage of fewer channels keeps their number
    maps = torch.randn(2, 11, 3, 4)
    expected = torch.cat([head.reduction.parts[0](maps[:, :3]), head.reduction.parts[1](maps[:, 3:])], 1)
    torch.testing.assert_close(head.reduce(maps), expected)
    torch.testing.assert_close(head.reduce(maps.flatten(2).mT), expected.flatten(2).mT)
    assert [part.out_channels for part in linear_parts(head.reduction)] == ([3, 5] if kind == "linear" else [])


def test_a_single_stage_is_reduced_as_if_it_had_no_name() -> None:
    named = PoolingHead({"3": 3}, "stage(3) | covariance | sqrt(5) | triu", 2, 5)
    plain = PoolingHead(3, "covariance | sqrt(5) | triu", 2, 5)
    named.load_state_dict(plain.state_dict())
    assert named.pool.groups == {"3": 5}


def test_stages_without_a_reduction_keep_their_channels() -> None:
    head = PoolingHead({"3": 3, "last": 8}, "[stage(last) | average, average]", 2, None).eval()
    assert head.pool.groups == {"3": 3, "last": 8}
    assert isinstance(head.reduction, nn.Identity)
    wide = PoolingHead({"3": 3, "last": 200}, "[stage(last) | average, covariance | sqrt(5) | triu]", 2, None)
    assert wide.pool.groups == {"3": 3, "last": 128}
