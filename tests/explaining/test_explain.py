from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import polycov
from polycov.errors import PolycovError
from polycov.explaining.explain import explain
from polycov.models.model import Model
from polycov.pooling.methods import method_options

POOLS = ["average", "gem", "isqrt-cov", "ipccp-ts", "ipccp-rm", "monet-ts", "cbp-ts", "improved-bilinear"]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=POOLS)
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(0)
    dim = 64 if "dim" in method_options(request.param) else None
    model = polycov.create_model(
        "test_resnet", pool=request.param, num_classes=4, channels=8, weights="none", stage=2, size=64, dim=dim
    )
    model.classes = ["ash", "birch", "cedar", "dogwood"]
    return model.eval()


def test_regions_and_constant_add_up_to_the_logit(model: Model, images: torch.Tensor) -> None:
    with torch.no_grad():
        logits = model(images)
    for i, found in enumerate(explain(model, images)):
        best = int(logits[i].argmax())
        assert found.target == model.classes[best] == found.probabilities[0][0]
        assert found.score == pytest.approx(float(logits[i, best]), rel=1e-5)
        total = float(found.regions.double().sum()) + found.constant
        assert total == pytest.approx(found.score, rel=1e-4)
        assert found.regions.shape == (8, 8)
        assert found.image.shape == (3, 64, 64)
        assert 0 <= float(found.image.min()) <= float(found.image.max()) <= 1
        size = float(found.regions.abs().sum())
        np.testing.assert_allclose(found.pairs.sum(1), found.regions.flatten(), atol=1e-4 * size)
        assert found.heat().shape == (64, 64)
        torch.testing.assert_close(found.partners(2, 3).flatten(), found.pairs[2 * 8 + 3])


def test_one_class_against_another_is_the_difference_of_the_two(model: Model, images: torch.Tensor) -> None:
    one, other = explain(model, images, classes="ash"), explain(model, images, classes="cedar")
    both = explain(model, images, classes="ash", against="cedar")
    for a, b, difference in zip(one, other, both, strict=True):
        torch.testing.assert_close(difference.regions, a.regions - b.regions, rtol=1e-3, atol=1e-4)
        assert difference.score == pytest.approx(a.score - b.score, abs=1e-4)
        assert difference.question == "Why ash and not cedar?"
    runner_up = explain(model, images, against="runner-up")
    assert all(found.against == found.probabilities[1][0] for found in runner_up)
    for found in explain(model, images, against=[found.target for found in runner_up]):  # the predicted class itself
        assert found.against == found.probabilities[1][0]


def test_the_note_says_what_is_held_fixed(model: Model, images: torch.Tensor) -> None:
    note = explain(model, images[:1])[0].note
    assert ("held fixed" in note) == ("signed_sqrt" in model.pool.spec)


def test_channel_pairs_are_the_largest_parts(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = polycov.create_model("test_resnet", pool="isqrt-cov", num_classes=4, channels=3, weights="none", stage=2)
    found = explain(model, images[:1], channel_pairs=100)[0]
    assert len(found.channel_pairs) == 9
    bias = float(model.classifier.bias.detach()[model.classes.index(found.target)])
    total = sum(pair.contribution for pair in found.channel_pairs)
    assert total + bias == pytest.approx(found.score, rel=1e-4)
    sizes = [abs(pair.contribution) for pair in found.channel_pairs]
    assert sizes == sorted(sizes, reverse=True)


def test_a_run_explains_files(finished: Path, trees: Path) -> None:
    files = sorted((trees / "test").rglob("*.jpg"))[:3]
    names = [found.name for found in explain(finished, files)]
    assert names == [str(file) for file in files]
    (one,) = explain(str(finished), Image.open(files[0]), against="runner-up")
    assert "Why " in str(one)
    assert len(one.table().rows) == 10


def test_tokens_are_explained_too() -> None:
    torch.manual_seed(0)
    model = polycov.create_model("vit_tiny_patch16_224", pool="isqrt-cov", num_classes=3, channels=8, weights="none")
    (found,) = explain(model.eval(), torch.randn(1, 3, 224, 224))
    assert found.regions.shape == (14, 14)
    assert float(found.regions.double().sum()) + found.constant == pytest.approx(found.score, rel=1e-4)


def test_mistakes(finished: Path, trees: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    file = next((trees / "test").rglob("*.jpg"))
    with pytest.raises(PolycovError, match=r"Unknown class 'ahs'\..*Did you mean 'ash'"):
        explain(finished, file, classes="ahs")
    with pytest.raises(PolycovError, match=r"Cannot read the image .*text\.jpg"):
        explain(finished, tmp_path / "text.jpg")
    with pytest.raises(PolycovError, match="Expected two different classes to compare, got 'ash' twice"):
        explain(finished, file, classes="ash", against="ash")
    with pytest.raises(PolycovError, match="Expected images to explain"):
        explain(finished, [])
    with pytest.raises(PolycovError, match="one of classes per image, 1 in all, got 2"):
        explain(finished, file, classes=["ash", "birch"])
    with pytest.raises(PolycovError, match=r"shape \(B, 3, H, W\)"):
        explain(finished, torch.zeros(3, 8, 8))
