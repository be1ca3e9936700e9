"""Exported files agree with the model they were made from, in onnxruntime and in torch.export."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import polycov
from polycov.errors import MissingDependencyError
from polycov.models.export import as_program, export, export_onnx, export_program
from polycov.models.model_folder import ModelFolder
from polycov.models.onnx import OnnxFile
from polycov.pooling.methods import method_options, reads_class_token
from polycov.pooling.pool import Pool

CHANNELS = 12
OTHERS = ["covariance | power(0.7, 12) | triu", "gaussian | log(16) | count_sketch(20)", "gem | l2"]
OTHERS += ["bilinear | polynomial(0.5, 1, -0.25, unit_trace=True) | tensor_sketch(16, learnable=True)"]


def create(method: str) -> Pool:
    pool = polycov.create_pool(method, CHANNELS, dim=24 if "dim" in method_options(method) else None, seed=1)
    if pool.fittable:
        pool.fit([(torch.randn(60, CHANNELS, 7, 5), torch.arange(60) % 4)])
    return pool.eval()


METHODS = [*(name for name in polycov.list_methods() if not reads_class_token(name)), *OTHERS]  # of maps
EXACT = [method for method in METHODS if create(method).needs_eigenvalues]
MAPS = [(method, (7, 5)) for method in METHODS if method not in EXACT]
MAPS += [("isqrt-cov", (2, 3)), ("ipccp-ts", (2, 3))]  # by the Gram matrix


def test_both_kinds_of_methods_are_tested() -> None:
    assert {"isqrt-cov", "ipccp-ts", "ipccp-rm", "ipccp-cs", "ipccp-fit", "average"} <= set(METHODS) - set(EXACT)
    assert "mpn-cov" in EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("method", "size"), MAPS)
def test_pools_agree_in_onnxruntime_for_any_batch(method: str, size: tuple[int, int], tmp_path: Path) -> None:
    pool = create(method)
    export_onnx(pool, tmp_path / "pool.onnx", torch.randn(2, CHANNELS, *size))
    file = OnnxFile(tmp_path / "pool.onnx")
    for batch in (1, 5):
        x = torch.randn(batch, CHANNELS, *size)
        expected = pool(x).detach()
        assert np.abs(file(x.numpy()) - expected.numpy()).max() < 1e-4 * float(expected.abs().max())
    (described,) = file.description["pools"]
    assert polycov.create_pool(described["spec"], described["channels"], seed=described["seed"]).spec == pool.spec


@pytest.mark.parametrize("method", ["average", "isqrt-cov"])
def test_programs_of_pools_agree_for_any_batch(method: str) -> None:
    pool = create(method)
    program = as_program(pool).module()
    for batch in (1, 5):
        x = torch.randn(batch, CHANNELS, 16, 16)
        torch.testing.assert_close(program(x), pool(x))


@pytest.mark.parametrize("method", EXACT)
def test_an_eigendecomposition_is_refused_with_an_alternative(method: str, tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match=r"needs an eigendecomposition, which ONNX does not have.*sqrt\(5\)"):
        export_onnx(create(method), tmp_path / "pool.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_zero_and_constant_maps_are_finite_in_onnxruntime(tmp_path: Path) -> None:
    pool = create("ipccp-ts")
    export_onnx(pool, tmp_path / "pool.onnx")
    x = torch.stack([torch.zeros(CHANNELS, 16, 16), torch.full((CHANNELS, 16, 16), 3.0), torch.randn(CHANNELS, 16, 16)])
    x = torch.cat([x, 1e15 * x[2:], 1e-20 * x[2:]])
    output = OnnxFile(tmp_path / "pool.onnx")(x.numpy())
    expected = pool(x).numpy()
    assert np.isfinite(output).all()
    assert (np.abs(output - expected) <= 1e-4 * np.abs(expected).max(1, keepdims=True)).all()


@pytest.mark.slow
def test_a_program_of_torch_export_agrees_and_takes_any_batch(model: polycov.Model, tmp_path: Path) -> None:
    result = export(model, tmp_path / "model.pt2")
    assert result.path == tmp_path / "model.pt2"
    assert result.bytes == result.path.stat().st_size
    assert result.distance is not None
    assert result.distance < 1e-5
    assert " MB, logits within " in str(result)
    extra = {"polycov": ""}
    program = torch.export.load(result.path, extra_files=extra).module()
    x = torch.randn(5, 3, 64, 64)
    torch.testing.assert_close(program(x), model(x))
    assert json.loads(extra["polycov"])["classes"] == model.classes
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.slow
def test_a_network_of_ones_own_exports_with_a_pool_in_it(tmp_path: Path) -> None:
    norm = nn.BatchNorm2d(CHANNELS)
    network = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), norm, create("ipccp-rm"), nn.Linear(24, 2)).train()
    norm.eval()
    assert export_onnx(network, tmp_path / "net.onnx", torch.randn(2, 3, 20, 20)) < 1e-4
    assert network.training
    assert not norm.training
    with pytest.raises(polycov.PolycovError, match="Expected example, an input of Sequential"):
        as_program(network)


@pytest.mark.slow
def test_a_model_with_a_module_as_backbone_exports(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU())
    model = polycov.create_model(network, pool="average", channels=0, num_classes=2, size=41)
    export(model, tmp_path / "model.onnx")
    assert OnnxFile(tmp_path / "model.onnx").description["model"]["backbone"] == "Sequential"
    with pytest.raises(polycov.PolycovError, match="Cannot save a model whose backbone is the module Sequential"):
        export(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write"), [("net.onnx", export_onnx), ("net.pt2", export_program)])
def test_a_file_that_would_not_agree_leaves_the_old_one(name: str, write: Callable[..., float], tmp_path: Path) -> None:
    layer = nn.Linear(CHANNELS, 2)
    network, example = nn.Sequential(create("average"), layer), torch.randn(1, CHANNELS, 9, 9)  # one sample is enough
    write(network, tmp_path / name, example)
    before = (tmp_path / name).read_bytes()
    nn.init.constant_(layer.weight, torch.nan)
    with pytest.raises(polycov.PolycovError, match="is not written"):
        write(network, tmp_path / name, example)
    assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_two_outputs_are_refused(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x + 2

    with pytest.raises(polycov.PolycovError, match="one output, got 2 outputs"):
        export_onnx(Two(), tmp_path / "two.onnx", torch.zeros(2, 3))


def test_an_unfitted_projection_is_refused() -> None:
    with pytest.raises(polycov.NotFittedError, match=r"The projection of 'covariance .* is not fitted: call pool\.fit"):
        as_program(polycov.create_pool("ipccp-fit", CHANNELS, dim=8))


def test_a_network_that_cannot_be_traced_ends_in_a_sentence() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if float(x.sum()) > 0 else x - 1

    with pytest.raises(polycov.PolycovError, match=r"torch\.export cannot trace this Branch: "):
        as_program(Branch(), torch.ones(2, 3))


def test_a_folder_is_a_model_with_a_card(model: polycov.Model, tmp_path: Path) -> None:
    """Also from the folder of a run, whose card states what was measured."""
    data = {"name": "trees", "fingerprint": "0", "images": {"train": 18, "val": 6, "test": 12}}
    result = {"test_accuracy": 0.75, "low": 0.4677, "high": 0.9111, "images": 12}
    run = ModelFolder(tmp_path / "run")
    run.write(
        model.describe() | {"config": {"path": str(tmp_path)}, "data": data, "result": result}, model.state_dict()
    )
    written = export(run.path, tmp_path / "out")
    assert written.distance is None
    assert str(written).startswith(f"{tmp_path / 'out'}, ")
    assert written.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    again = polycov.Model.from_pretrained(tmp_path / "out")
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(again(x), model(x))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "75.00% on 12 test images" in card
    assert "trees: 3 classes; images: 18 train, 6 val, 12 test" in card
    assert str(tmp_path) not in card + (tmp_path / "out" / "config.json").read_text()


def test_a_licence_is_stated_and_the_model_is_unchanged(model: polycov.Model, tmp_path: Path) -> None:
    export(model, tmp_path / "mine", license="mit")
    assert "license: mit" in (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert polycov.Model.from_pretrained(tmp_path / "mine").about["license"] == "mit"
    assert model.about == {}


def test_the_licence_is_that_of_the_weights_a_model_began_with(tmp_path: Path) -> None:
    model = polycov.create_model(pool="average", channels=0, num_classes=2, stage=1, size=64)
    export(model, tmp_path)
    assert "license: apache-2.0" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors", "model.tflite", "a_file"])
def test_other_kinds_of_files_are_refused(model: polycov.Model, name: str, tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(
        polycov.PolycovError, match=rf"Expected out to be FILE\.onnx, FILE\.pt2 or a folder, got '.*{name}'"
    ):
        export(model, tmp_path / name)


def test_a_missing_onnx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        MissingDependencyError, match=r"ONNX needs onnx and onnxscript .*pip install 'polycov\[export\]'"
    ):
        export_onnx(create("average"), tmp_path / "x.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["average", "gem", "isqrt-cov", "gaussian | sqrt(5) | tensor_sketch(16)"])
@pytest.mark.parametrize("size", [(7, 5), (2, 3)])
def test_pools_with_weights_agree_in_onnxruntime(method: str, size: tuple[int, int], tmp_path: Path) -> None:
    pool = create(method)
    export_onnx(pool, tmp_path / "pool.onnx", (torch.randn(2, CHANNELS, *size), torch.rand(2, *size)))
    x, weights = torch.randn(5, CHANNELS, *size), torch.rand(5, *size)
    weights[:, 0, 0] = 0
    expected = pool(x, weights).detach().numpy()
    output = OnnxFile(tmp_path / "pool.onnx")(x.numpy(), weights.numpy())
    assert np.abs(output - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(output - pool(x).detach().numpy()).max() > 1e-2 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["cross-bilinear", "mcb", "cross(covariance) | sqrt(5) | count_sketch(16)"])
def test_pools_of_two_inputs_agree_in_onnxruntime(spec: str, tmp_path: Path) -> None:
    pool = polycov.create_pool(spec, (6, 4), dim=24 if spec == "mcb" else None)
    x, y, weights = torch.randn(5, 6, 3, 4), torch.randn(5, 4, 3, 4), torch.rand(5, 3, 4)
    for inputs in ((x, y), (x, y, weights), *([] if "covariance" in spec else [(x, y[:, :, 0, 0])])):
        export_onnx(pool, tmp_path / "pool.onnx", tuple(z[:2] for z in inputs))
        file = OnnxFile(tmp_path / "pool.onnx")
        expected = pool(*inputs).numpy()
        assert np.abs(file(*(z.numpy() for z in inputs)) - expected).max() < 1e-4 * np.abs(expected).max()
    (described,) = file.description["pools"]
    again = polycov.create_pool(described["spec"], tuple(described["channels"]), seed=described["seed"])
    assert torch.equal(again(x, y), pool(x, y))
    assert export_program(pool, tmp_path / "pool.pt2") < 1e-4


def test_an_eigendecomposition_of_two_inputs_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match="needs an eigendecomposition"):
        export_onnx(polycov.create_pool("cross-root", (6, 4)), tmp_path / "pool.onnx")
