from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from polycov.data.images import Split
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone
from polycov.models.model import Model
from polycov.pooling.methods import create_pool
from polycov.training.probe import fit_pool, fit_probe, fit_reduction, set_classifier
from polycov.training.ridge import fit_ridge


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone("test_resnet", weights="none").eval()


def clusters(count: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % classes
    return 3 + centres[labels] + 1.5 * torch.randn(count, features, generator=generator), labels


def test_the_reduction_is_scikit_learns_principal_components(backbone: Backbone) -> None:
    model = Model(backbone, "average", 2, 5, reduction="linear")
    maps = torch.randn(6, backbone.num_features, 4, 4, generator=torch.Generator().manual_seed(0))
    maps *= torch.linspace(1, 3, backbone.num_features)[:, None, None]
    fit_reduction(model, maps.split(2))
    rows = maps.permute(0, 2, 3, 1).reshape(-1, backbone.num_features).double().numpy()
    expected = PCA(5).fit_transform(rows)
    found = model.reduce(maps).permute(0, 2, 3, 1).reshape(-1, 5).detach().double().numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-3, atol=1e-3)


def test_a_reduction_does_not_widen(backbone: Backbone) -> None:
    model = Model(backbone, "average", 2, backbone.num_features + 1, reduction="linear")
    with pytest.raises(PolycovError, match=f"at most the {backbone.num_features} channels"):
        fit_reduction(model, [])


def test_a_fitted_pool_is_fitted_and_classifies(backbone: Backbone) -> None:
    model = Model(backbone, "covariance | sqrt(5) | triu | project(6)", 3, 4, reduction="linear").eval()
    maps = torch.randn(12, backbone.num_features, 4, 4, generator=torch.Generator().manual_seed(0))
    fit_reduction(model, maps.split(4))
    fit_pool(model, [(x, torch.zeros(len(x), dtype=torch.int64)) for x in maps.split(4)])
    labels = torch.arange(12) % 3
    reduced = model.reduce(maps).detach()
    batches: dict[Split, Any] = {"train": reduced[:9].split(5), "val": reduced[9:].split(5)}
    probe = fit_probe(model.pool, batches, {"train": labels[:9], "val": labels[9:]}, 3)
    features, ridge = torch.cat([probe.features["train"][:], probe.features["val"][:]]), probe.ridge
    assert features.shape == (12, 6)
    torch.testing.assert_close(features, model.pool(reduced))
    assert probe.pool_seconds > 0
    set_classifier(model, ridge)
    torch.testing.assert_close(model.classify(maps), features @ ridge.weight + ridge.bias, rtol=1e-4, atol=1e-4)
    assert isinstance(model.reduction, nn.Conv2d)


def test_an_unfitted_pool_is_fitted_to_training_images_and_again_with_validation() -> None:
    spec = "average | project(3, fit=classes)"
    x, y = clusters(60, 8, 4, seed=1)
    tokens = x[:, None].double()
    batches: dict[Split, Any] = {"train": tokens[:40].split(9), "val": tokens[40:].split(9)}
    pool = create_pool(spec, 8).double()
    probe = fit_probe(pool, batches, {"train": y[:40], "val": y[40:]}, 4)
    first = create_pool(spec, 8).double().fit([(tokens[:40], y[:40])])
    last = create_pool(spec, 8).double().fit([(tokens, y)])
    torch.testing.assert_close(pool.state_dict(), last.state_dict())
    assert not torch.allclose(pool(tokens), first(tokens))
    torch.testing.assert_close(probe.features["val"], last(tokens[40:]).detach())
    again = [last(tokens[:40]).detach(), last(tokens[40:]).detach()]
    expected = fit_ridge(first(tokens[:40]).detach(), y[:40], first(tokens[40:]).detach(), y[40:], 4, again)
    assert torch.equal(probe.ridge.val_correct, expected.val_correct)
    assert probe.ridge.strength == expected.strength
    torch.testing.assert_close(probe.ridge.weight, expected.weight)


def test_a_pool_that_is_fitted_already_is_left_alone() -> None:
    x, y = clusters(60, 8, 4, seed=1)
    pool = create_pool("average | project(3)", 8).fit([x[:20, None]])
    before = {key: value.clone() for key, value in pool.state_dict().items()}
    batches: dict[Split, Any] = {"train": x[:40, None].split(9), "val": x[40:, None].split(9)}
    fit_probe(pool, batches, {"train": y[:40], "val": y[40:]}, 4)
    torch.testing.assert_close(pool.state_dict(), before, rtol=0, atol=0)
