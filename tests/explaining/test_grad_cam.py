import pytest
import torch
from torch import nn

import polycov
from polycov.errors import PolycovError
from polycov.explaining.explain import explain
from polycov.explaining.grad_cam import find_block, grad_cam, hires_cam
from polycov.models.model import Model


def make(pool: str, reduction: str = "linear", channels: int = 8) -> Model:
    torch.manual_seed(0)
    return polycov.create_model(
        "test_resnet",
        pool=pool,
        num_classes=4,
        channels=channels,
        reduction="linear" if reduction == "linear" else "relu",
        weights="none",
        stage=2,
        size=64,
    ).eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_average_pooling_without_reduction_has_the_exact_map(images: torch.Tensor) -> None:
    model = make("average", channels=0)
    exact = torch.stack([found.regions.flatten() for found in explain(model, images)])
    # the gradient at each location is the weight divided by the number of locations
    torch.testing.assert_close(grad_cam(model, images, relu=False), exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad_cam(model, images), exact.relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["local", "reduced"])
def test_the_definition_in_a_loop(images: torch.Tensor, layer: str) -> None:
    model = make("isqrt-cov", "relu")
    with torch.no_grad():
        local = model.backbone(images)
    features = (local if layer == "local" else model.reduce(local)).detach().requires_grad_()
    logits = model.classify(features) if layer == "local" else model.classifier(model.pool(features))
    (gradient,) = torch.autograd.grad(logits[0, 2] + logits[1, 1], features)
    for i, found in enumerate(grad_cam(model, images, [2, 1], layer=layer)):
        total = torch.zeros(features.shape[2:])
        for c in range(features.shape[1]):
            total += gradient[i, c].mean() * features[i, c].detach()
        torch.testing.assert_close(found, total.clamp(min=0).flatten(), rtol=1e-3, atol=1e-5)


def test_both_layers_agree_up_to_a_constant_with_a_linear_reduction(images: torch.Tensor) -> None:
    model = make("isqrt-cov")
    assert isinstance(model.reduction, nn.Conv2d)
    local, reduced = (grad_cam(model, images, layer=layer, relu=False) for layer in ("local", "reduced"))
    shift = local - reduced
    torch.testing.assert_close(shift, shift.mean(1, keepdim=True).expand_as(shift), rtol=1e-3, atol=1e-5)


def test_it_is_empty_before_a_covariance_and_not_one_block_earlier(images: torch.Tensor) -> None:
    model = make("isqrt-cov")
    block = find_block(model, images[:1])
    assert block.startswith("network.")
    empty, earlier = (grad_cam(model, images, layer=layer, relu=False).abs().mean() for layer in ("reduced", block))
    assert float(empty) < 1e-4 * float(earlier)


def test_a_module_by_its_name_gives_what_its_alias_gives(images: torch.Tensor) -> None:
    model = make("gem", "relu")
    last = [name for name, _ in model.backbone.named_children()][-1]
    network = model.backbone.get_submodule(last)
    stage = f"{last}.{model.backbone.network.feature_info[2]['module']}"
    assert network is model.backbone.network
    torch.testing.assert_close(grad_cam(model, images, layer=stage), grad_cam(model, images))


def test_hires_cam_of_a_homogeneous_pool_adds_up_to_the_score(images: torch.Tensor) -> None:
    model = make("isqrt-cov")  # of degree 1 in the reduced features
    maps = hires_cam(model, images, [2, 2], layer="reduced", relu=False)
    with torch.no_grad():
        logits = model(images)[:, 2] - model.classifier.bias[2]
    torch.testing.assert_close(maps.sum(1), logits, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(hires_cam(model, images, [2, 2], layer="reduced"), maps.relu())


def test_tokens_and_mistakes(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = polycov.create_model("vit_tiny_patch16_224", pool="isqrt-cov", num_classes=3, channels=8, weights="none")
    assert grad_cam(model, torch.randn(1, 3, 224, 224)).shape == (1, 196)
    assert model.training  # the mode is restored
    with pytest.raises(PolycovError, match=r"Unknown layer 'pooled'\. Expected 'local', 'reduced', or a module"):
        grad_cam(model, images, layer="pooled")
    model = make("isqrt-cov")
    with pytest.raises(PolycovError, match=r"The layer 'network\.fc' gives no local features"):
        grad_cam(model, images, layer="network.fc")
