"""Networks compiled by onnxruntime or OpenVINO, for the CPU, in float32."""

import importlib
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
Run = Callable[[Array], list[Array]]
Start = Callable[[Array], Callable[[], list[Array]]]  # begins with images, and returns what waits for the outputs
INSTALL = "Install with: pip install 'polycov[fast]'"
NEEDS = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}


def missing_packages(name: str) -> list[str]:
    """Returns the packages that an engine needs and that are not installed."""
    return [package for package in NEEDS[name] if find_spec(package) is None]


class Engine:
    """A network compiled for images of one size; an image gets the same features in every batch.

    Args:
        name: "onnxruntime" or "openvino".
        network: network in evaluation mode that returns tensors, on the CPU, in float32.
        example: an input, such as images (B, 3, H, W). onnxruntime computes batches of this size, OpenVINO image by
            image.
        precision: of OpenVINO's computations: "f32", or "bf16", only for benchmarks.

    Attributes:
        name: name and version of the engine.
    """

    def __init__(self, name: str, network: nn.Module, example: Tensor, precision: str = "f32") -> None:
        self.name, threads = f"{name} {version(name)}", torch.get_num_threads()
        self._start: Start
        if name == "onnxruntime":
            self._start = _beside(_in_batches(_onnxruntime(_as_onnx(network, example), threads), len(example)))
        else:
            self._start = _openvino(_as_onnx(network, example[:1]), threads, example[:1].numpy(), precision)

    def __call__(self, images: Tensor) -> Outputs:
        """Returns the outputs for images like the example, with any B."""
        return self.start(images)()

    def start(self, images: Tensor) -> Callable[[], Outputs]:
        """Begins with images, and returns what waits for their outputs; batches are computed in their order."""
        wait = self._start(images.contiguous().numpy())
        return lambda: [torch.from_numpy(output) for output in wait()]


def _beside(run: Run) -> Start:
    """Runs in a thread of its own."""
    thread = ThreadPoolExecutor(1)
    return lambda images: thread.submit(run, images).result


def _in_batches(run: Run, size: int) -> Run:
    """Fills up smaller batches, and cuts larger ones."""

    def whole(images: Array) -> list[Array]:
        missing = np.zeros((size - len(images), *images.shape[1:]), images.dtype)
        return [output[: len(images)] for output in run(np.concatenate([images, missing]) if len(missing) else images)]

    def runs(images: Array) -> list[Array]:
        parts = [whole(images[i : i + size]) for i in range(0, len(images), size)]
        return [np.concatenate(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*parts, strict=True)]

    return runs


def _as_onnx(network: nn.Module, example: Tensor) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer's own
        program = torch.export.export(network, (example,), strict=False)
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    content: bytes = exported.model_proto.SerializeToString()
    return content


def _onnxruntime(model: bytes, threads: int) -> Run:
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


def _openvino(model: bytes, threads: int, example: Array, precision: str) -> Start:
    """Runs a network compiled for one image: as many images at a time as there are threads, each on one of them.

    The activations of one image stay in the cache of a core, and no thread waits for another within a layer. The
    threads are Python's, not those of an AsyncInferQueue: a request that is freed by its own callback never ends.
    """
    options = {
        "INFERENCE_PRECISION_HINT": precision,  # bfloat16 is its choice where the CPU has it
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": threads,
        "ENABLE_CPU_PINNING": False,  # several processes would be given the same cores
    }
    core = _openvino_core()
    compiled = core.compile_model(core.read_model(model), "CPU", options)
    shapes = [tuple(output.shape)[1:] for output in compiled.outputs]
    # The first inference initialises what waits for Python's lock: two threads that did so at once would never end.
    compiled.create_infer_request().infer({0: np.zeros_like(example)}, share_inputs=True, share_outputs=True)
    workers, own = ThreadPoolExecutor(threads), threading.local()

    def compute(images: Array, i: int, outputs: list[Array]) -> None:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        own.request.infer({0: images[i : i + 1]}, share_inputs=True, share_outputs=True)
        for k, output in enumerate(outputs):
            output[i] = own.request.get_output_tensor(k).data[0]

    def start(images: Array) -> Callable[[], list[Array]]:
        outputs = [np.empty((len(images), *shape), np.float32) for shape in shapes]
        computed = [workers.submit(compute, images, i, outputs) for i in range(len(images))]

        def wait() -> list[Array]:
            for image in computed:
                image.result()
            return outputs

        return wait

    return start
