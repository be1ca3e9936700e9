"""Pools of features in which several stages of a network stand side by side."""

import pytest
import torch

import polycov
from polycov import create_pool
from polycov.pooling.fitting import supported_size
from polycov.pooling.kernel import uncompressed
from polycov.pooling.methods import stage_names
from samples import features

ROOT = "covariance | sqrt(5) | triu"
STAGES = {"3": 2, "4": 5, "last": 3}
X = features(4, 12, 10)
PARTS = dict(zip(STAGES, X.split([2, 5, 3], -1), strict=True))


@pytest.mark.parametrize(
    ("spec", "sources"),
    [
        (f"[stage(last) | average, stage(4) | {ROOT}, stage(3) | gem(3) | l2]", ["last", "4", "3"]),
        (f"[stage(4) | max, {ROOT}, [stage(last) | average, average]]", ["4", "3", "last", "3"]),  # the first: 3
    ],
)
def test_each_part_pools_its_stage_alone(spec: str, sources: list[str]) -> None:
    pool = create_pool(spec, STAGES).double()
    bare = [text.split("| ", 1)[1] if text.startswith("stage") else text for text in _leaves(spec)]
    expected = [create_pool(part, STAGES[s]).double()(PARTS[s]) for part, s in zip(bare, sources, strict=True)]
    torch.testing.assert_close(pool(X), torch.cat(expected, 1), rtol=1e-12, atol=1e-12)
    maps = X.mT.unflatten(2, (3, 4))
    assert torch.equal(pool(maps), pool(X))
    assert repr(pool) == f"SideBySidePool({STAGES}, '{spec}', seed=0)"


def _leaves(spec: str) -> list[str]:
    """The specs of single features, by hand: without brackets inside arguments."""
    return [part.strip(" []") for part in spec.split(",")]


def test_a_single_feature_may_name_its_stage() -> None:
    spec = "stage('3+4') | covariance | sqrt(5) | tensor_sketch(6) | l2"
    pool = create_pool(spec, {"3+4": 10}).double()
    assert pool.spec == spec
    torch.testing.assert_close(pool(X), create_pool(spec.split("| ", 1)[1], 10).double()(X), rtol=1e-12, atol=1e-12)
    assert (pool.channels, pool.width, pool.stage_channels) == (10, 10, 10)


def test_no_gradient_reaches_other_stages() -> None:
    pool = polycov.SecondOrderPool(STAGES, f"stage(4) | {ROOT}").double()
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(pool(x).sum(), x)
    assert bool((gradient[..., 2:7] != 0).any())
    assert bool((gradient[..., :2] == 0).all())
    assert bool((gradient[..., 7:] == 0).all())


def test_names_may_be_numbers_and_the_first_stage_is_that_of_parts_without_a_name() -> None:
    spec = f"[stage(last) | average, {ROOT}]"
    assert stage_names(spec) == ("last", None)
    pool = create_pool(spec, {4: 6, "last": 4}).double()  # type: ignore[dict-item]
    assert pool.groups == {"4": 6, "last": 4}
    expected = torch.cat([X[..., 6:].mean(1), create_pool(ROOT, 6).double()(X[..., :6])], 1)
    torch.testing.assert_close(pool(X), expected, rtol=1e-12, atol=1e-12)


def test_a_fit_sees_the_stage_of_its_part() -> None:
    spec = "[stage(last) | average | project(2), stage(4) | average] | balance"
    train, sizes = features(30, 12, 10, seed=2), {"4": 7, "last": 3}
    pool = create_pool(spec, sizes).double().fit([train])
    own = create_pool("average | project(2)", 3).double().fit([train[..., 7:]])
    parts = [own(X[..., 7:]).detach(), X[..., :7].mean(1)]
    ratio = pool(X).detach() / torch.cat(parts, 1)
    for part in ratio.split([2, 7], 1):  # one factor for each part
        torch.testing.assert_close(part, part[:1, :1].expand_as(part))


def test_sizes_and_kernels_of_stages() -> None:
    spec = "[stage(3) | average | project(9), stage(4) | average] | project(50)"
    reduced = "[stage(3) | average | project(2), stage(4) | average] | project(7)"
    assert supported_size(spec, samples=100, channels={"3": 2, "4": 5}) == (reduced, None)
    sketched = "stage(4) | covariance | sqrt(5) | count_sketch(8)"
    assert uncompressed(sketched) == f"stage(4) | {ROOT}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("stage(4)", "Expected a moment or a first-order pooling after 'stage\\(4\\)'"),
        ("stage(4) | [average, max]", "Features side by side name their stages in the list"),
        ("stage() | average", "missing a required argument: 'name'"),
        ("stage(None) | average", "Expected the name of a stage, such as 4, '3\\+4' or last, got None"),
        ("stage(True) | average", "got True"),
        ("stage(4.5) | average", "got 4.5"),
        ("stage(-1) | average", "got -1"),
        ("stage('04') | average", "got '04'"),
        ("stage(auto) | average", "got 'auto'"),
        ("stage('4,5') | average", "got '4,5'"),
        ("stage(4) | l2", "Expected a moment or cross or first-order"),
        ("stage(4) | class_token", "A pool of two inputs, or of a class token, cannot name a stage"),
        ("[class_token, stage(4) | average]", "A pool of two inputs, or of a class token, cannot name a stage"),
        ("stage(4) | cross | identity | flatten", "A pool of two inputs, or of a class token, cannot name a stage"),
        ("average | stage(4)", "Expected a post"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(polycov.SpecError, match=message):
        polycov.parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "channels", "message"),
    [
        ("stage(4) | average", 8, r"stage\(4\) needs the channels of each stage, such as channels={'4': 64}"),
        ("stage(lats) | average", {"last": 8}, "Unknown stage 'lats'. Did you mean 'last'"),
        ("average", {"4": 8, "last": 4}, "'average' does not pool last, of the stages 4, last"),
        ("[stage(last) | average, max]", {"last": 4}, None),
        ("average", {}, "channels of at least one stage"),
        ("average", {"4": 0}, "channels of stage 4 of a pool to be a positive integer, got 0"),
        ("average", {"a b": 4}, "Expected the name of a stage"),
    ],
)
def test_channels_that_do_not_fit_are_refused(spec: str, channels: object, message: str | None) -> None:
    if message is None:
        assert create_pool(spec, channels).out_features == 8  # type: ignore[call-overload]
        return
    with pytest.raises(polycov.PolycovError, match=message):
        create_pool(spec, channels)  # type: ignore[call-overload]
