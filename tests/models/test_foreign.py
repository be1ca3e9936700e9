"""Weights of other models: published fast-MPN-COV networks, and runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import polycov
from polycov.bench.reference import plain_isqrt_cov

NAMES = {"reduction.0": "layer_reduce", "reduction.1": "layer_reduce_bn", "classifier": "fc", "backbone.network.": ""}
OPTIONS: dict[str, Any] = {"pool": "isqrt-cov", "channels": 6, "last_stride": False, "size": 64}


@pytest.fixture
def donor() -> polycov.Model:
    torch.manual_seed(0)
    donor = polycov.create_model("resnet18", num_classes=3, weights="none", **OPTIONS).eval()
    torch.nn.init.normal_(donor.classifier.weight)
    return donor


def published(donor: polycov.Model) -> dict[str, Tensor]:
    """The weights under the names of fast-MPN-COV."""
    state = {}
    for name, tensor in donor.state_dict().items():
        if not name.startswith("pool."):
            prefix = next(p for p in NAMES if name.startswith(p))
            state[NAMES[prefix] + name[len(prefix) :]] = tensor
    return state


def test_a_published_fast_mpn_cov_file_gives_its_own_logits(donor: polycov.Model, tmp_path: Path) -> None:
    state = published(donor)
    save_file(state, tmp_path / "mpncov.safetensors")
    weights = str(tmp_path / "mpncov.safetensors")
    x = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        plain = plain_isqrt_cov(donor.local_features(x)) @ state["fc.weight"].mT + state["fc.bias"]
        model = polycov.create_model("resnet18", num_classes=3, weights=weights, **OPTIONS).eval()
        assert model.reduction_has_weights
        torch.testing.assert_close(model(x), plain, rtol=1e-4, atol=1e-4)
        compact = polycov.create_model(  # another pool, another number of classes: all but the classifier
            "resnet18", num_classes=5, weights=weights, **OPTIONS | {"pool": "ipccp-cs", "dim": 16}
        ).eval()
        torch.testing.assert_close(compact.local_features(x), donor.local_features(x))
    with pytest.raises(polycov.PolycovError, match=r"reduction.0.weight is \(6, 512, 1, 1\), not \(7, 512, 1, 1\)"):
        polycov.create_model("resnet18", num_classes=3, weights=weights, **OPTIONS | {"channels": 7})
    with pytest.raises(polycov.PolycovError, match=r"'mpncov\.safetensors' does not fit the model"):
        polycov.create_model("resnet34", num_classes=3, weights=weights, **OPTIONS)


def test_the_weights_of_a_saved_model_give_backbone_and_reduction(
    model: polycov.Model, saved: Path, tmp_path: Path
) -> None:
    weights = str(saved / "model.safetensors")
    other = polycov.create_model("test_resnet", pool="gem", channels=12, num_classes=5, weights=weights, size=64).eval()
    assert other.reduction_has_weights
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(other.local_features(x), model.local_features(x))
    assert other(x).shape == (2, 5)
    with pytest.raises(polycov.PolycovError, match=r"'model\.safetensors' does not fit the model"):
        polycov.create_model("resnet18", pool="gem", channels=12, num_classes=5, weights=weights, size=64)
