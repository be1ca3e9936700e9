"""Pooling attached to timm models: timm's contract holds for every family."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polycov
from polycov.models.attach import Attached
from polycov.models.backbones import import_timm
from polycov.models.local_features import as_local_features

timm = import_timm()
FAMILIES: dict[str, dict[str, Any]] = {  # shallow where depth does not matter
    "resnet18": {},
    "efficientnet_b0": {},
    "tf_efficientnet_lite0": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"depth": 2, "img_size": 64},
    "swin_tiny_patch4_window7_224": {
        "depths": (1, 1, 1, 1),
        "embed_dim": 24,
        "num_heads": (1, 2, 3, 4),
        "window_size": 2,
        "img_size": 64,
    },
}


def create(name: str) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=7, drop_rate=0.2, **FAMILIES[name]).eval()


def random_images() -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_contract_of_timm_holds(name: str) -> None:
    model, x = create(name), random_images()
    own = {key: value.clone() for key, value in model.state_dict().items()}
    before = model.forward_features(x)
    assert polycov.attach(model, "ipccp-ts", dim=96, channels=32) is model
    assert isinstance(model, type(create(name)))
    features = model.forward_features(x)
    assert torch.equal(features, before)
    axis = 1 if features.ndim == 4 and getattr(model, "output_fmt", "NCHW") == "NCHW" else -1
    assert features.shape[axis] == model.num_features
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, 96) == (2, model.head_hidden_size)
    assert model(x).shape == (2, 7) == (2, model.num_classes)
    assert torch.equal(model(x), model.get_classifier()(pooled))
    kept = model.state_dict()
    assert all(torch.equal(kept[key], own[key]) for key in own if key in kept)
    assert {key.partition(".")[0] for key in kept.keys() - own.keys()} == {"pool_head"}
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.num_classes == 3
    model.reset_classifier(0)
    assert torch.equal(model(x), pooled)
    model.reset_classifier(5)
    assert model(x).shape == (2, 5)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), features)
    model.reset_classifier(7)
    assert model(x).shape == (2, 7)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pooled_feature_is_the_pool_of_the_local_features(name: str) -> None:
    model, x = create(name), random_images()
    reduced = name != "vit_tiny_patch16_224"
    polycov.attach(model, "isqrt-cov", channels=16 if reduced else 0, reduction="linear")
    local = as_local_features(model, model.forward_features(x))
    tokens = local.flatten(2).mT if local.ndim == 4 else local
    if reduced:
        layer = model.pool_head.reduction
        tokens = tokens @ layer.weight[:, :, 0, 0].mT + layer.bias
    expected = polycov.create_pool("isqrt-cov", tokens.shape[-1])(tokens)
    torch.testing.assert_close(model.forward_head(model.forward_features(x), pre_logits=True), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_learns_and_copies_are_models_too(name: str) -> None:
    model, x = create(name), random_images()
    polycov.attach(model, "ipccp-cs", dim=64, channels=16)
    model.train()(x).square().sum().backward()
    unused = [key for key, p in model.named_parameters() if p.grad is None]
    assert unused == []
    model.eval()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x), model(x))
        again.reset_classifier(2)
        assert again(x).shape == (2, 2)
    assert model(x).shape == (2, 7)
    fresh = polycov.attach(create(name), "ipccp-cs", dim=64, channels=16, seed=3)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))


def test_attaching_again_replaces_the_pool() -> None:
    model, x = create("resnet18"), random_images()
    polycov.attach(model, "ipccp-ts", dim=96, channels=32)
    polycov.attach(model, "average", channels=0, num_classes=4)
    assert model(x).shape == (2, 4)
    assert model.head_hidden_size == model.num_features == 512
    assert type(model).__mro__.count(Attached) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_dropout_is_that_of_the_model(name: str) -> None:
    model, x = create(name), random_images()
    polycov.attach(model, "ipccp-ts", dim=96, channels=32)
    torch.manual_seed(0)
    dropped = (model.train().forward_head(model.forward_features(x), pre_logits=True) == 0).double().mean()
    assert 0.08 < float(dropped) < 0.4  # of a rate of 0.2
    polycov.attach(model, "ipccp-ts", dim=64, channels=32)
    assert model.pool_head.dropout.p == 0.2


def test_dtype_and_frozen_parts_are_those_of_the_model() -> None:
    model, x = create("resnet18").double(), random_images().double()
    model.layer1.requires_grad_(False)
    model.train()
    model.layer1.eval()
    polycov.attach(model, "ipccp-ts", dim=96, channels=32)
    assert not any(p.requires_grad for p in model.layer1.parameters())
    assert all(p.requires_grad for p in model.layer2.parameters())
    assert model.training
    assert not model.layer1.training
    assert model.eval()(x).dtype == torch.float64
    model.reset_classifier(3)
    assert model(x).dtype == torch.float64


@pytest.mark.parametrize("name", ["xcit_nano_12_p16_224", "deit3_small_patch16_224"])
def test_class_tokens_are_not_pooled(name: str) -> None:
    model = timm.create_model(name, num_classes=3, depth=2).eval()
    polycov.attach(model, "ipccp-cs", dim=64, channels=16)
    local = as_local_features(model, model.forward_features(torch.rand(1, 3, 224, 224)))
    assert local.shape[1] == 14 * 14


@pytest.mark.parametrize("build", ["mobilenetv3_small_050", "without a name"])
def test_no_parameter_is_without_a_gradient(build: str) -> None:
    if build == "without a name":
        model = timm.models.convnext.ConvNeXt(num_classes=3, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    else:
        model = timm.create_model(build, num_classes=3)
    polycov.attach(model, "ipccp-cs", dim=64, channels=16)
    model.train()(torch.rand(4, 3, 64, 64)).square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def test_a_model_without_local_features_is_refused_and_unchanged() -> None:
    model = timm.create_model("pit_ti_224", num_classes=3).eval()  # its class token alone
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(polycov.PolycovError, match="there is nothing to pool"):
        polycov.attach(model, "ipccp-cs", dim=64, channels=16)
    assert type(model).__name__ == "PoolingVisionTransformer"
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    compiled = torch.compile(create("resnet18"), backend="eager")
    with pytest.raises(polycov.PolycovError, match="Attach the pool first, then compile"):
        polycov.attach(compiled, "ipccp-cs")


def test_mistakes_end_in_a_sentence() -> None:
    with pytest.raises(
        polycov.PolycovError, match="Expected a classifier from timm, got Linear, which has no forward_"
    ):
        polycov.attach(nn.Linear(2, 2), "ipccp-ts")
    model = create("resnet18")
    with pytest.raises(polycov.SpecError, match="Unknown method 'ipcp-ts'"):
        polycov.attach(model, "ipcp-ts")
    assert model(random_images()).shape == (2, 7)  # unchanged
    polycov.attach(model, "ipccp-ts", dim=96, channels=32)
    with pytest.raises(polycov.PolycovError, match="Cannot reset the pool to 'avg' with 3 classes: use polycov"):
        model.reset_classifier(3, "avg")


def test_stages_by_name_need_a_whole_model() -> None:
    model = import_timm().create_model("resnet18", num_classes=3)
    with pytest.raises(polycov.PolycovError, match=r"attach pools the last layer, .* names stages: use .*create_model"):
        polycov.attach(model, "[stage(3) | average, average]")
