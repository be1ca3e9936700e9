import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycov.data.transforms import Preprocessing
from polycov.errors import MissingDependencyError, NonFiniteError
from polycov.models.backbones import Backbone
from polycov.models.backends import engines, frozen
from polycov.models.backends.frozen import FEW, TOLERANCE, Backend, ByStage, FrozenBackbone, relative_distance
from polycov.pooling.methods import create_pool
from polycov.progress import LogProgress

CASES: list[tuple[str, dict[str, Any]]] = [
    ("test_resnet", {"last_stride": False}),
    ("test_resnet", {"stage": 2}),
    ("test_efficientnet", {}),
    ("test_vit", {"keep_prefix": True}),
    ("test_vit", {"stage": 1}),
    ("test_convnext", {}),
]
COMPILED: list[Backend] = ["onnxruntime", "openvino", "openvino", "openvino", "onnxruntime", "onnxruntime"]
RUNS = [
    *(pytest.param(*case, "torch") for case in CASES),
    *(pytest.param(*case, backend, marks=pytest.mark.slow) for case, backend in zip(CASES, COMPILED, strict=True)),
    pytest.param(*CASES[3], "onnxruntime", marks=pytest.mark.slow),
    pytest.param(*CASES[0], "openvino", marks=pytest.mark.slow),
]


def images(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def backbone(name: str, **options: Any) -> Backbone:
    torch.manual_seed(0)
    return Backbone(name, weights="none", size=160 if name == "test_vit" else 64, **options).eval()


@pytest.mark.parametrize(("name", "options", "backend"), RUNS)
def test_every_backend_gives_what_torch_gives(name: str, options: dict[str, Any], backend: Backend) -> None:
    network = backbone(name, **options)
    compiled = FrozenBackbone(network, backend, batch_size=4)
    x = images(6, network.size)  # more than a batch, and not a multiple of it
    with torch.inference_mode():
        expected = network(x)
        (output,) = compiled(x)
    assert output.shape == expected.shape
    assert relative_distance([output], [expected]) < TOLERANCE
    assert compiled.name.startswith(backend)
    for part in (x[:1], x[1:4]):
        assert relative_distance(compiled(part), [network(part).detach()]) < TOLERANCE


@pytest.mark.parametrize("backend", ["torch", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_stage_and_the_last_layer_come_from_one_pass(backend: Backend) -> None:
    complete = backbone("test_resnet")
    x = images(3, 64)
    with torch.inference_mode():
        expected = complete.by_stage(x, ["2", "last"])
    assert relative_distance(FrozenBackbone(ByStage(complete, ["2", "last"]), backend)(x), expected) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_image_has_the_same_features_in_every_batch(backend: Backend) -> None:
    network = backbone("test_resnet")
    x = images(5, 64)
    compiled = FrozenBackbone(network, backend, batch_size=5)
    (whole,), (part,) = compiled(x), compiled(x[3:])
    assert torch.equal(whole[3:], part)


@pytest.mark.parametrize("backend", ["auto", "torch", pytest.param("openvino", marks=pytest.mark.slow)])
def test_pixels_give_what_prepared_images_give(backend: Backend) -> None:
    network, preprocessing = backbone("test_resnet"), Preprocessing(64, 64, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    pixels = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    compiled = FrozenBackbone(network, backend, images=0, preprocessing=preprocessing)
    with torch.inference_mode():
        expected = [network(preprocessing.normalise(pixels))]
        assert relative_distance(compiled(pixels), expected) < (1e-7 if backend == "auto" else TOLERANCE)
        assert relative_distance(compiled(preprocessing.normalise(pixels)), expected) < TOLERANCE


def test_few_images_leave_the_network_as_it_is() -> None:
    network, x = backbone("test_resnet"), images(2, 64)
    lines: list[str] = []
    few = FrozenBackbone(network, images=FEW - 1, progress=LogProgress(lines.append))
    with torch.inference_mode():
        assert torch.equal(few(x)[0], network(x.contiguous(memory_format=torch.channels_last)))
    assert (few.name, lines) == ("torch", [])


@pytest.mark.slow
def test_auto_takes_the_fastest_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = backbone("test_resnet"), images(2, 64)
    hidden: set[str] = set()
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name in hidden else find_spec(name))
    names = []
    for package in ("", "openvino", "onnxruntime"):
        hidden.add(package)
        lines: list[str] = []
        auto = FrozenBackbone(network, images=FEW, progress=LogProgress(lines.append))
        auto(x)
        names.append(auto.name.split()[0])
        assert "within" in lines[0]
    assert names == ["openvino", "onnxruntime", "torch"]


def test_a_missing_engine_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    with pytest.raises(MissingDependencyError, match=r"'openvino' needs openvino\. .*polycov\[fast\]"):
        FrozenBackbone(backbone("test_resnet"), "openvino")


@pytest.mark.slow
def test_openvino_does_not_report_to_its_makers(tmp_path: Path) -> None:
    program = (
        "import sys; from polycov.models.backends.engines import import_openvino; import_openvino().Core(); "
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    variables = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())  # it would leave a number for this user


class Odd(nn.Module):
    """A network that no exporter takes: what it does depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x * 3


def test_what_cannot_be_compiled_runs_on_torch_and_says_so() -> None:
    lines: list[str] = []
    network = FrozenBackbone(Odd(), "openvino", progress=LogProgress(lines.append))
    x = torch.ones(2, 3, 8, 8)
    torch.testing.assert_close(network(x), [2 * x])
    torch.testing.assert_close(network(-x), [-3 * x])
    assert network.name == "torch"
    assert len(lines) == 1
    assert "openvino cannot run this backbone" in lines[0]


class Wrong:
    """An engine that computes something else."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        self.name, self.network, self.factor = "wrong", network, factor

    def start(self, images: Tensor) -> Any:
        return lambda: [self.factor * self.network(images)]


@pytest.mark.parametrize("wrong", [1 + 2 * TOLERANCE, float("nan")])
def test_an_engine_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    network, x = backbone("test_resnet"), images(2, 64)
    monkeypatch.setattr(frozen, "Engine", lambda name, network, example: Wrong(network, wrong))
    lines: list[str] = []
    compiled = FrozenBackbone(network, "onnxruntime", progress=LogProgress(lines.append))
    with torch.inference_mode():
        assert relative_distance(compiled(x), [network(x)]) < TOLERANCE
    assert compiled.name == "torch with BatchNorm folded"
    assert "onnxruntime is not used" in lines[0]


def test_images_of_another_size_and_no_images_work() -> None:
    network = backbone("test_resnet")
    compiled = FrozenBackbone(network, "onnxruntime", batch_size=2)
    assert compiled(images(0, 64))[0].shape[0] == 0
    compiled(images(2, 64))
    assert compiled.name.startswith("onnxruntime")
    assert compiled(images(2, 96))[0].shape == network(images(2, 96)).shape


def test_engines_use_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(engines, "_as_onnx", lambda network, example: b"")
    for name in ("_onnxruntime", "_openvino"):
        monkeypatch.setattr(engines, name, lambda model, threads, *_: seen.append(threads))
    for backend in ("onnxruntime", "openvino"):
        engines.Engine(backend, nn.Identity(), torch.zeros(1, 3, 8, 8))
    assert seen == [torch.get_num_threads()] * 2


POOLED: list[tuple[Backend, str, str]] = [
    ("torch", "ipccp-ts", "torch with BatchNorm folded"),
    ("openvino", "ipccp-ts", "openvino {} with the pool"),
    ("openvino", "average", "openvino {} with the pool"),
    ("onnxruntime", "covariance | sqrt_minimax(9) | triu", "onnxruntime {} with the pool"),
    ("openvino", "mpn-cov", "openvino {}"),  # needs eigenvalues
    ("onnxruntime", "covariance | sqrt(9) | triu", "onnxruntime {}"),  # computed in float64
]


@pytest.mark.parametrize(
    ("backend", "spec", "name"),
    [pytest.param(*case, marks=[] if case[0] == "torch" else pytest.mark.slow) for case in POOLED],
)
def test_what_follows_the_network_is_computed_too(backend: Backend, spec: str, name: str) -> None:
    network, x = backbone("test_resnet"), images(9, 64)
    pool = create_pool(spec, network.num_features).eval()
    with torch.inference_mode():
        expected = [pool(network(x))]
    compiled = FrozenBackbone(network, backend, then=pool, batch_size=4)
    assert relative_distance(compiled(x), expected) < TOLERANCE
    assert compiled.name == name.format(version(backend))
    streamed = list(compiled.stream((part, len(part)) for part in x.split(2)))
    assert [count for _, count in streamed] == [2, 2, 2, 2, 1]
    assert relative_distance([torch.cat([y for (y,), _ in streamed])], expected) < TOLERANCE


@pytest.mark.parametrize("backend", ["torch", pytest.param("openvino", marks=pytest.mark.slow)])
def test_features_that_are_not_finite_are_reported_as_plain_torch_does(backend: Backend) -> None:
    network, x = nn.Conv2d(3, 16, 8, 8).eval(), images(5, 64)
    compiled = FrozenBackbone(network, backend, then=create_pool("ipccp-ts", 16).eval())
    compiled(x)
    x[3] *= 3e38  # its features are infinite
    with pytest.raises(NonFiniteError, match=r"1 of 5 samples have NaN or Inf \(samples \[3\]\)"):
        compiled(x)


@pytest.mark.parametrize("backend", ["torch", pytest.param("onnxruntime", marks=pytest.mark.slow)])
def test_a_stream_begins_a_batch_before_it_waits_and_leaves_the_threads_as_they_were(backend: Backend) -> None:
    compiled = FrozenBackbone(backbone("test_resnet"), backend, batch_size=2)
    taken: list[int] = []

    def batches() -> Iterator[tuple[Tensor, int]]:
        for i in range(4):
            taken.append(i)
            yield images(2, 64), i

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        stream = compiled.stream(batches())
        assert next(stream)[1] == 0
        assert taken == [0, 1]
        assert torch.get_num_threads() == (2 if backend == "torch" else 1)
        assert [i for _, i in stream] == [1, 2, 3]
        assert torch.get_num_threads() == 2
        stream = compiled.stream(batches())
        next(stream)
        stream.close()
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            list(compiled.stream((x, 1 // i) for x, i in ((images(2, 64), 1), (images(2, 64), 0))))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


SIGNAL_AFTER_TWO = """
import faulthandler, gc, signal, subprocess
faulthandler.enable()
import torch
from polycov.models.backends.engines import Engine
network = torch.nn.Conv2d(3, 4, 3).eval()
first, second = (Engine("openvino", network, torch.zeros(1, 3, 8, 8)) for _ in range(2))
del first
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGCHLD, lambda *_: print("a signal"))
subprocess.run(["true"], check=True)
"""


@pytest.mark.slow
def test_a_process_survives_signals_after_two_engines_have_gone() -> None:
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-c", SIGNAL_AFTER_TWO], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "a signal\n"), done.stderr
