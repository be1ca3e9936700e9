"""Whole classifiers: they train, predict, and come back from a folder bit for bit."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import polycov
from polycov.data.transforms import Preprocessing
from polycov.errors import MissingDependencyError
from polycov.models.backbones import Backbone
from polycov.models.model import Model, probabilities


def small(**options: object) -> polycov.Model:
    settings = {"pool": "gem", "channels": 12, "num_classes": 2, "weights": "none", "size": 64}
    return polycov.create_model("test_resnet", **settings | options)  # type: ignore[arg-type]


def assert_same(one: polycov.Model, other: polycov.Model) -> None:
    theirs = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
        assert tensor.dtype == theirs[name].dtype
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(one(x), other(x))
    assert one.classes == other.classes
    assert one.preprocessing == other.preprocessing
    assert repr(one.pool) == repr(other.pool)


@pytest.mark.parametrize(("backbone", "side"), [("resnet18", 64), ("vit_tiny_patch16_224", 224)])
def test_a_model_trains_and_predicts(backbone: str, side: int) -> None:
    model = polycov.create_model(backbone, pool="ipccp-cs", dim=32, num_classes=3, channels=8, weights="none")
    x = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 2])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.embed(x).shape == (2, 32)
    both = model.predict(x, mirror=True)
    torch.testing.assert_close(both, model.predict(x.flip(-1), mirror=True))
    torch.testing.assert_close(both.sum(1), torch.ones(2))
    assert model.training


def test_predicting_leaves_a_frozen_norm_in_evaluation_mode() -> None:
    model = small().train()
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d)).eval()
    model.predict(torch.rand(2, 3, 64, 64))
    assert model.training
    assert not norm.training


def test_probabilities_are_means_over_views() -> None:
    x = torch.rand(2, 3, 4, 4)

    def logits(images: Tensor) -> Tensor:
        return images[:, :, 0, 0]

    expected = (x[:, :, 0, 0].softmax(-1) + x[:, :, 0, -1].softmax(-1)) / 2
    torch.testing.assert_close(probabilities(logits, x, True), expected)
    torch.testing.assert_close(probabilities(logits, x, False), x[:, :, 0, 0].softmax(-1))


def test_a_model_that_gives_nan_does_not_predict() -> None:
    model = small()
    torch.nn.init.constant_(model.classifier.weight, torch.nan)
    with pytest.raises(polycov.NonFiniteError, match="The model gives NaN or Inf for these images"):
        model.predict(torch.rand(1, 3, 64, 64))


def test_the_device_is_that_of_the_weights() -> None:
    model = small()
    assert model.device == torch.device("cpu")
    assert model.to("meta").device == torch.device("meta")


def test_no_reduction_pools_the_features_themselves() -> None:
    model = small(pool="average", channels=0)
    assert isinstance(model, Model)
    assert model.pool.out_features == model.backbone.num_features


def test_default_channels_are_those_of_training_or_of_a_probe() -> None:
    own = Own()
    assert polycov.create_model(own, pool="gem", num_classes=2, size=41).pool.channels == 256
    for pool in ("gem", "isqrt-cov"):
        probe = polycov.create_model(own, pool=pool, num_classes=2, size=41, channels=None)
        assert probe.pool.channels == 6
        assert isinstance(probe.reduction, nn.Identity) == (pool == "gem")


class Own(nn.Module):
    """A network of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 5, stride=4)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images).relu()


def test_a_module_is_a_backbone_in_both_constructors() -> None:
    own, x = Own(), torch.rand(2, 3, 41, 41)
    prepared = Preprocessing(41, 48, mean=(0.1, 0.2, 0.3))
    models = [
        polycov.create_model(own, pool="isqrt-cov", num_classes=3, channels=4, size=41),
        polycov.create_model(own, pool="isqrt-cov", num_classes=3, channels=4, preprocessing=prepared),
        Model(own, "isqrt-cov", 3, 4, size=41),
        Model(own, "isqrt-cov", 3, 4, preprocessing=prepared),
        Model(Backbone(own, preprocessing=prepared), "isqrt-cov", 3, 4),
    ]
    assert [model.preprocessing == prepared for model in models] == [False, True, False, True, True]
    for model in models:
        assert model.backbone.network is own
        assert model.predict(x).shape == (2, 3)
        model(x).square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(polycov.PolycovError, match="A Backbone has its own size and preprocessing"):
        Model(Backbone(own, size=41), "isqrt-cov", 3, 4, size=41)


def test_a_module_cannot_be_saved_and_the_sentence_says_what_to_do(saved: Path) -> None:
    model = polycov.create_model(Own(), pool="gem", num_classes=3, channels=4, size=41)
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(
        polycov.PolycovError,
        match=r"module Own: config\.json cannot rebuild it\. Register it with timm's register_model",
    ):
        model.save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    with pytest.raises(polycov.PolycovError, match="Cannot save a model whose backbone is the module Own"):
        model.check_saveable()


def test_a_round_trip_is_bit_for_bit(model: polycov.Model, saved: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = polycov.Model.from_pretrained(saved)
    assert not again.training
    assert_same(model, again)
    again.save_pretrained(tmp_path / "twice")
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "twice" / name).read_bytes() == (saved / name).read_bytes()


def test_options_of_a_pool_and_the_dtype_come_back(tmp_path: Path) -> None:
    model = small(pool="ipccp-ts", dim=8, route="paper", check_finite=False)
    model.double().save_pretrained(tmp_path)
    again = polycov.Model.from_pretrained(tmp_path)
    assert isinstance(again.pool, polycov.SecondOrderPool)
    assert (again.pool.route, again.pool.check_finite) == ("paper", False)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert torch.equal(again(x), model.eval()(x))


def test_names_must_be_as_many_as_outputs(tmp_path: Path, saved: Path) -> None:
    model = small()
    model.classifier = torch.nn.Linear(12, 5)
    before = (saved / "config.json").read_bytes()
    for folder in (tmp_path / "x", saved):
        with pytest.raises(polycov.PolycovError, match="Expected model\\.classes to be a list of 5 names"):
            model.save_pretrained(folder)
    assert not (tmp_path / "x").exists()
    assert (saved / "config.json").read_bytes() == before


def test_uploading_without_a_hub_ends_in_a_sentence(model: polycov.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no connection")

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi.create_repo", refuse)
    with pytest.raises(polycov.PolycovError, match="Cannot upload to 'me/trees': ConnectionError no connection"):
        model.push_to_hub("me/trees")


def test_a_missing_huggingface_hub_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name in ("polycov.models.model", "polycov.models.model_card", "polycov.models.hub"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=r"Models need huggingface_hub .*pip install 'polycov\[train\]'"):
        importlib.import_module("polycov.models.model")
