"""Models of a transformer with class and register tokens, by their names in timm; random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

import polycov
from polycov.models.backbones import Backbone
from polycov.models.export import export_onnx
from polycov.models.onnx import OnnxFile

VIT = "test_vit"  # class token and 160 × 160 images, 0.4 million parameters
IMAGES = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))


def model(pool: str) -> polycov.Model:
    torch.manual_seed(0)
    return polycov.create_model(VIT, pool=pool, num_classes=3, channels=0, weights="none").eval()


def test_a_model_pools_the_class_token_of_its_backbone() -> None:
    made = model("class_token")
    assert made.backbone.prefix_tokens == made.pool.prefix_tokens == 1
    with torch.no_grad():
        tokens = made.backbone.network.forward_features(IMAGES)
        torch.testing.assert_close(made.embed(IMAGES), tokens[:, 0])


def test_other_models_get_no_prefix_tokens() -> None:
    made = model("isqrt-cov")
    assert made.backbone.prefix_tokens == 0
    kept = Backbone(made.backbone.network, size=160, keep_prefix=True)
    assert kept.locations(160) == made.backbone.locations(160)
    assert kept(IMAGES).shape[1] == made.backbone(IMAGES).shape[1] + 1
    mixed = polycov.Model(kept, "isqrt-cov", 3, channels=0).eval()
    torch.testing.assert_close(mixed.embed(IMAGES), made.embed(IMAGES))


def test_a_backbone_without_one_is_refused() -> None:
    with pytest.raises(
        polycov.PolycovError, match=r"'class_token' reads a class token, and the backbone .* gives none"
    ):
        polycov.create_model(pool="class_token", num_classes=3, weights="none")


def test_a_saved_model_reads_its_class_token_again(tmp_path: Path) -> None:
    made = model("class_token | l2")
    made.save_pretrained(tmp_path / "model")
    again = polycov.Model.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again.predict(IMAGES), made.predict(IMAGES))


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["class_token", "efficient-probe"])
def test_a_model_with_a_class_token_or_queries_is_exported(pool: str, tmp_path: Path) -> None:
    made = model(pool)
    export_onnx(made, tmp_path / "model.onnx", IMAGES)
    found = OnnxFile(tmp_path / "model.onnx")(IMAGES.numpy())
    np.testing.assert_allclose(found, made(IMAGES).detach().numpy(), rtol=1e-3, atol=1e-4)
