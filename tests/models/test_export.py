"""Exported files agree with the model they were made of, in onnxruntime and in torch.export."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import nn

import polycov
from polycov.commands.main import main
from polycov.models.export import OnnxClassifier, OnnxFile, as_program, export_onnx, export_program
from polycov.models.pretrained import write_pretrained
from polycov.pooling.methods import method_options

CHANNELS = 12
OTHERS = ["covariance | power(0.7, 12) | triu", "gaussian | log(16) | count_sketch(20)", "gem | l2"]
OTHERS += ["bilinear | polynomial(0.5, 1, -0.25, unit_trace=True) | tensor_sketch(16, learnable=True)"]


def made(method: str) -> polycov.pooling.pool.Pool:
    pool = polycov.create_pool(method, CHANNELS, dim=24 if "dim" in method_options(method) else None, seed=1)
    if "project" in pool.spec:
        pool.fit([torch.randn(60, CHANNELS, 7, 5)])
    return pool.eval()


def by_eigenvalues(method: str) -> bool:
    pool = made(method)
    return isinstance(pool, polycov.SecondOrderPool) and pool.function.exact


METHODS = [*polycov.list_methods(), *OTHERS]
EXACT = [method for method in METHODS if by_eigenvalues(method)]


def test_both_kinds_of_methods_are_tested() -> None:
    assert {"isqrt-cov", "ipccp-ts", "ipccp-rm", "ipccp-cs", "ipccp-fit", "average"} <= set(METHODS) - set(EXACT)
    assert "mpn-cov" in EXACT


MAPS = [(method, (7, 5)) for method in METHODS if method not in EXACT]
MAPS += [("isqrt-cov", (2, 3)), ("ipccp-ts", (2, 3))]  # by way of the Gram matrix


@pytest.mark.parametrize(("method", "size"), MAPS)
def test_pools_agree_in_onnxruntime_for_any_batch(method: str, size: tuple[int, int], tmp_path: Path) -> None:
    pool = made(method)
    export_onnx(pool, tmp_path / "pool.onnx", torch.randn(2, CHANNELS, *size))
    file = OnnxFile(tmp_path / "pool.onnx")
    for batch in (1, 5):
        x = torch.randn(batch, CHANNELS, *size)
        expected = pool(x).detach()
        assert np.abs(file(x.numpy()) - expected.numpy()).max() < 1e-4 * float(expected.abs().max())
    (described,) = file.described["pools"]
    assert polycov.create_pool(described["spec"], described["channels"], seed=described["seed"]).spec == pool.spec


@pytest.mark.parametrize("method", EXACT)
def test_an_eigendecomposition_is_refused_with_what_to_use_instead(method: str, tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match=r"takes an eigendecomposition, which ONNX does not have.*sqrt\(5\)"):
        export_onnx(made(method), tmp_path / "pool.onnx")
    assert list(tmp_path.iterdir()) == []


def test_zero_and_constant_maps_are_finite_in_onnxruntime(tmp_path: Path) -> None:
    pool = made("ipccp-ts")
    export_onnx(pool, tmp_path / "pool.onnx")
    x = torch.stack([torch.zeros(CHANNELS, 16, 16), torch.full((CHANNELS, 16, 16), 3.0), torch.randn(CHANNELS, 16, 16)])
    x = torch.cat([x, 1e15 * x[2:], 1e-20 * x[2:]])
    got = OnnxFile(tmp_path / "pool.onnx")(x.numpy())
    expected = pool(x).numpy()
    assert np.isfinite(got).all()
    assert (np.abs(got - expected) <= 1e-4 * np.abs(expected).max(1, keepdims=True)).all()


@pytest.fixture(scope="module")
def model() -> polycov.Model:
    torch.manual_seed(0)
    model = polycov.create_model(pool="ipccp-cs", dim=48, channels=16, num_classes=3, stage=2, size=96).eval()
    model.classes = ["oak", "ash", "elm"]
    return model


@pytest.fixture(scope="module")
def photographs(model: polycov.Model) -> torch.Tensor:
    """Real pictures: two photographs, and parts of them."""
    from PIL import Image

    whole = [Image.fromarray(image) for image in load_sample_images().images]
    return torch.stack([model.preprocessing(i) for i in (*whole, *(w.crop((100, 80, 420, 300)) for w in whole))])


@pytest.fixture(scope="module")
def exported(model: polycov.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_pretrained(folder / "model", model)
    main(["export", str(folder / "model"), "-o", str(folder / "model.onnx")])
    return folder / "model.onnx"


def test_a_model_agrees_on_photographs(model: polycov.Model, exported: Path, photographs: torch.Tensor) -> None:
    expected = model(photographs).detach()
    got = torch.from_numpy(OnnxFile(exported)(photographs.numpy()))
    assert float((got - expected).abs().max() / expected.abs().max()) < 1e-4
    assert float((expected - expected.mean(0)).abs().max() / expected.abs().max()) > 1e-2  # they are not all the same
    classifier = OnnxClassifier(exported)
    assert classifier.classes == model.classes
    assert classifier.preprocessing == model.preprocessing
    for mirror in (False, True):
        torch.testing.assert_close(
            classifier.predict(photographs, mirror=mirror), model.predict(photographs, mirror=mirror)
        )


def test_predict_takes_the_file_and_needs_no_model(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    Image.fromarray(load_sample_images().images[0]).save(tmp_path / "temple.png")
    main(["predict", str(exported.parent / "model"), str(tmp_path / "temple.png")])
    expected = capsys.readouterr().out
    monkeypatch.setattr(nn.Module, "__init__", lambda *_: pytest.fail("a module was made"))
    main(["predict", str(exported), str(tmp_path / "temple.png")])
    assert capsys.readouterr().out == expected


def test_a_program_of_torch_export_agrees_and_takes_any_batch(model: polycov.Model, tmp_path: Path) -> None:
    assert export_program(model, tmp_path / "model.pt2") < 1e-5
    extra = {"polycov": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    x = torch.randn(5, 3, 96, 96)
    torch.testing.assert_close(program(x), model(x))
    assert json.loads(extra["polycov"])["classes"] == model.classes
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_a_network_of_ones_own_exports_with_a_pool_in_it(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), made("ipccp-rm"), nn.Linear(24, 2)).train()
    assert export_onnx(network, tmp_path / "net.onnx", torch.randn(2, 3, 20, 20)) < 1e-4
    assert network.training
    with pytest.raises(polycov.PolycovError, match="Expected an example of the input of Sequential"):
        as_program(network)


def test_what_does_not_agree_leaves_the_file_that_was_there(tmp_path: Path, model: polycov.Model) -> None:
    for name, export in (("net.onnx", export_onnx), ("net.pt2", export_program)):
        network = nn.Sequential(made("ipccp-cs"), nn.Linear(24, 2))
        example = torch.randn(1, CHANNELS, 9, 9)  # one sample is enough
        export(network, tmp_path / name, example)
        before = (tmp_path / name).read_bytes()
        nn.init.constant_(network[1].weight, torch.nan)
        with pytest.raises(polycov.PolycovError, match="is not written"):
            export(network, tmp_path / name, example)
        assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unfitted_projection_and_two_outputs_are_refused(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x + 2

    with pytest.raises(polycov.NotFittedError, match="A projection is not fitted"):
        export_onnx(polycov.create_pool("ipccp-fit", CHANNELS, dim=8), tmp_path / "pool.onnx")
    with pytest.raises(polycov.PolycovError, match="one input and one output, got 2 outputs"):
        export_onnx(Two(), tmp_path / "two.onnx", torch.zeros(2, 3))


def test_a_model_in_half_precision_exports_and_predicts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    half = polycov.create_model(
        "test_resnet", pool="ipccp-cs", dim=16, channels=8, num_classes=2, weights="none", size=64
    )
    assert export_onnx(half.half().eval(), tmp_path / "half.onnx") < 0.01
    x = torch.randn(3, 3, 64, 64)
    found = OnnxClassifier(tmp_path / "half.onnx").predict(x)
    torch.testing.assert_close(found, half.predict(x.half()).float(), rtol=0.01, atol=0.01)
    with pytest.raises(polycov.PolycovError, match="does not take an array of shape"):
        OnnxClassifier(tmp_path / "half.onnx").predict(torch.randn(1, 3, 32, 32))


def test_files_that_are_not_ours_are_refused(tmp_path: Path, exported: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(polycov.PolycovError, match="Cannot read"):
        OnnxFile(tmp_path / "text.onnx")
    with pytest.raises(polycov.PolycovError, match="There is no file"):
        OnnxFile(tmp_path / "nowhere.onnx")
    export_onnx(made("average"), tmp_path / "pool.onnx")
    with pytest.raises(polycov.PolycovError, match="has no names of classes"):
        OnnxClassifier(tmp_path / "pool.onnx")
    with pytest.raises(polycov.NonFiniteError, match="gives NaN"):
        OnnxClassifier(exported).predict(torch.full((1, 3, 96, 96), torch.nan))
