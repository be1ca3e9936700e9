"""Networks compiled by onnxruntime or OpenVINO, for the CPU, in float32."""

import importlib
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Outputs = list[Tensor]
Array = np.ndarray[Any, Any]
INSTALL = "Install with: pip install 'polycov[fast]'"
NEEDS = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}


def missing_packages(name: str) -> list[str]:
    """Returns the packages that an engine needs and that are not installed."""
    return [package for package in NEEDS[name] if find_spec(package) is None]


class Engine:
    """A network compiled for batches of one size.

    A smaller batch is filled up, a larger one is cut: an image gets the same features in any batch.

    Args:
        name: "onnxruntime" or "openvino".
        network: network in evaluation mode that returns tensors, on the CPU, in float32.
        example: an input, such as images (B, 3, H, W).
        precision: of OpenVINO's computations: "f32", or "bf16", only for benchmarks.

    Attributes:
        name: name and version of the engine.
        shape: of the input.
    """

    def __init__(self, name: str, network: nn.Module, example: Tensor, precision: str = "f32") -> None:
        self.name, self.shape = f"{name} {version(name)}", tuple(example.shape)
        model, threads = _as_onnx(network, example), torch.get_num_threads()
        self._run = _onnxruntime(model, threads) if name == "onnxruntime" else _openvino(model, threads, precision)

    def __call__(self, images: Tensor) -> Outputs:
        """Returns the outputs for images like the example, with any B."""
        parts = [self._whole(part) for part in images.split(self.shape[0])]
        return [torch.cat(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*parts, strict=True)]

    def _whole(self, images: Tensor) -> Outputs:
        count, whole = len(images), self.shape[0]
        if count < whole:
            images = torch.cat([images, images.new_zeros(whole - count, *images.shape[1:])])
        outputs = self._run(images.contiguous().numpy())
        return [torch.from_numpy(output)[:count] for output in outputs]


def _as_onnx(network: nn.Module, example: Tensor) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer's own
        program = torch.export.export(network, (example,), strict=False)
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    content: bytes = exported.model_proto.SerializeToString()
    return content


def _onnxruntime(model: bytes, threads: int) -> Callable[[Array], list[Array]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the CPU to readers of images
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda images: session.run(None, {entry.name: images})


def import_openvino() -> ModuleType:
    """Returns the module openvino, imported without its telemetry, which would report the import to its makers."""
    name = "openvino_telemetry"
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    finally:
        if hidden:
            del sys.modules[name]


@cache
def _openvino_core() -> Any:
    """The only OpenVINO core of this process, which is never freed.

    A core sets a stack for signal handlers, and frees it at its own end. If the lives of two overlap, the second puts
    the freed stack of the first back, and the next signal, such as that of a child that ends, is fatal.
    """
    return import_openvino().Core()


def _openvino(model: bytes, threads: int, precision: str) -> Callable[[Array], list[Array]]:
    options = {
        "INFERENCE_PRECISION_HINT": precision,  # bfloat16 is its choice where the CPU has it
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # several processes would be given the same cores
    }
    core = _openvino_core()
    compiled = core.compile_model(core.read_model(model), "CPU", options)
    count = len(compiled.outputs)

    def run(images: Array) -> list[Array]:
        results = compiled(images, share_inputs=True)
        return [results[i] for i in range(count)]

    return run
