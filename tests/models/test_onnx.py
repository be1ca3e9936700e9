"""Classifiers in ONNX files, used like models."""

import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import polycov
from polycov.errors import MissingDependencyError
from polycov.models.export import export, export_onnx
from polycov.models.onnx import OnnxClassifier, OnnxFile

pytestmark = pytest.mark.slow  # each needs an exported file


@pytest.fixture(scope="module")
def classifier() -> polycov.Model:
    torch.manual_seed(0)
    model = polycov.create_model(pool="ipccp-cs", dim=48, channels=16, num_classes=3, stage=2, size=96).eval()
    model.classes = ["oak", "ash", "elm"]
    return model


@pytest.fixture(scope="module")
def photographs(classifier: polycov.Model) -> torch.Tensor:
    """Two photographs, and parts of them."""
    whole = [Image.fromarray(image) for image in load_sample_images().images]
    parts = [image.crop((100, 80, 420, 300)) for image in whole]
    return torch.stack([classifier.preprocessing(image) for image in (*whole, *parts)])


@pytest.fixture(scope="module")
def exported(classifier: polycov.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(classifier, tmp_path_factory.mktemp("exported") / "model.onnx").path


def test_a_model_agrees_on_photographs(classifier: polycov.Model, exported: Path, photographs: torch.Tensor) -> None:
    expected = classifier(photographs).detach()
    output = torch.from_numpy(OnnxFile(exported)(photographs.numpy()))
    assert float((output - expected).abs().max() / expected.abs().max()) < 1e-4
    assert float((expected - expected.mean(0)).abs().max() / expected.abs().max()) > 1e-2  # they are not all the same
    loaded = OnnxClassifier(exported)
    assert loaded.classes == classifier.classes
    assert loaded.preprocessing == classifier.preprocessing
    assert loaded.device == torch.device("cpu")
    for mirror in (False, True):
        torch.testing.assert_close(
            loaded.predict(photographs, mirror=mirror), classifier.predict(photographs, mirror=mirror)
        )


def test_predicting_makes_no_module(
    classifier: polycov.Model, exported: Path, photographs: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = classifier.predict(photographs)
    monkeypatch.setattr(nn.Module, "__init__", lambda *_: pytest.fail("a module was made"))
    torch.testing.assert_close(OnnxClassifier(exported).predict(photographs), expected)


def test_a_model_in_half_precision_exports_and_predicts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    half = polycov.create_model(
        "test_resnet", pool="ipccp-cs", dim=16, channels=8, num_classes=2, weights="none", size=64
    )
    assert export_onnx(half.half().eval(), tmp_path / "half.onnx") < 0.01
    x = torch.randn(3, 3, 64, 64)
    predicted = OnnxClassifier(tmp_path / "half.onnx").predict(x)
    torch.testing.assert_close(predicted, half.predict(x.half()).float(), rtol=0.01, atol=0.01)
    with pytest.raises(polycov.PolycovError, match="does not accept an array of shape"):
        OnnxClassifier(tmp_path / "half.onnx").predict(torch.randn(1, 3, 32, 32))


def test_files_of_others_are_refused(tmp_path: Path, exported: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(polycov.PolycovError, match="Cannot read"):
        OnnxFile(tmp_path / "text.onnx")
    with pytest.raises(polycov.PolycovError, match="There is no file"):
        OnnxFile(tmp_path / "nowhere.onnx")
    export_onnx(polycov.create_pool("average", 4), tmp_path / "pool.onnx")
    with pytest.raises(polycov.PolycovError, match="has no class names"):
        OnnxClassifier(tmp_path / "pool.onnx")
    file = onnx.load(tmp_path / "pool.onnx")
    next(entry for entry in file.metadata_props if entry.key == "polycov").value = "{"
    onnx.save(file, tmp_path / "damaged.onnx")
    with pytest.raises(polycov.PolycovError, match=r"The metadata of '.*damaged\.onnx' is damaged"):
        OnnxFile(tmp_path / "damaged.onnx")
    with pytest.raises(polycov.NonFiniteError, match="gives NaN"):
        OnnxClassifier(exported).predict(torch.full((1, 3, 96, 96), torch.nan))


LOGITS = {
    "texts": helper.make_tensor("v", TensorProto.STRING, [1, 3], [b"a", b"b", b"c"]),  # type: ignore[list-item]
    "no batch": helper.make_tensor("v", TensorProto.FLOAT, [3], [0.0, 1.0, 2.0]),
    "no images": helper.make_tensor("v", TensorProto.FLOAT, [0, 3], []),
    "other images": helper.make_tensor("v", TensorProto.FLOAT, [2, 3], [0.0] * 6),
}


@pytest.mark.parametrize("name", LOGITS)
def test_an_output_that_is_no_logits_is_refused(tmp_path: Path, exported: Path, name: str) -> None:
    file, value = onnx.load(exported), LOGITS[name]
    output = helper.make_tensor_value_info("y", value.data_type, [*value.dims[:-1], 3])
    graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value=value)], "g", file.graph.input, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=file.ir_version)
    model.metadata_props.extend(file.metadata_props)
    onnx.save(model, tmp_path / "constant.onnx")
    with pytest.raises(polycov.PolycovError, match=r"^Expected the ONNX file to give logits of shape \(1, 3\), got "):
        OnnxClassifier(tmp_path / "constant.onnx").predict(torch.zeros(1, 3, 96, 96))


def test_a_missing_onnxruntime_says_what_to_install(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"need onnxruntime .*pip install 'polycov\[export\]'"):
        OnnxFile(exported)
