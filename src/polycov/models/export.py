"""Models and pools for other programs: ONNX, torch.export, or a folder for the Hugging Face hub."""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import MissingDependencyError, NotFittedError, PolycovError, first_line
from polycov.models.model import Model
from polycov.models.model_card import model_card
from polycov.models.model_folder import FORMAT, PICKLES, ModelFolder
from polycov.models.modes import evaluation_mode
from polycov.models.onnx import INSTALL, METADATA_KEY, OnnxFile
from polycov.pooling.cross_pool import TwoInputPool
from polycov.pooling.pool import Pool
from polycov.progress import SILENT, Progress
from polycov.system.files import write_file

_OTHER_FILES = (*PICKLES, ".safetensors", ".json", ".tflite", ".mlmodel")


@dataclass(frozen=True)
class ExportResult:
    """What `export` wrote.

    Attributes:
        path: path of the file or folder.
        bytes: its size.
        distance: for a file, its largest difference from the model's logits on random images, relative to the largest.
    """

    path: Path
    bytes: int
    distance: float | None

    def __str__(self) -> str:
        size = f"{self.path}, {self.bytes / 2**20:.1f} MB"
        if self.distance is None:
            return size
        return f"{size}, logits within {self.distance:.1e} of the model's (relative, on random images)"


def export(
    model: Model | str | Path, out: str | Path, *, license: str | None = None, progress: Progress = SILENT
) -> ExportResult:
    """Writes a model for other programs, and compares a file with the model.

    Args:
        model: a model; or the folder of a finished run or saved model, or a name on the hub.
        out: FILE.onnx, FILE.pt2 (torch.export), or a folder (config.json, model.safetensors and a model card).
        license: for a folder: the licence that its card states; by default that of the backbone's weights.
        progress: receives what is being done.

    Raises:
        PolycovError: if there is no such model, it cannot be exported, or the file does not agree with it.
    """
    model, out = model if isinstance(model, Model) else Model.from_pretrained(model), Path(out)
    if out.suffix in _WRITERS:
        progress.message(f"tracing the model, and comparing {out} with it (up to a minute) …")
        distance = _WRITERS[out.suffix](model, out)
        return ExportResult(out, out.stat().st_size, distance)
    if out.is_file() or out.suffix in _OTHER_FILES:
        raise PolycovError(f"Expected out to be FILE.onnx, FILE.pt2 or a folder, got {str(out)!r}.")
    model.check_saveable()
    description = model.describe() | ({} if license is None else {"license": license})
    folder = ModelFolder(out)
    folder.write(description, model.state_dict(), str(model_card(description)))
    return ExportResult(out, folder.size_in_bytes(), None)


Example = Tensor | tuple[Tensor, ...]


def as_program(module: nn.Module, example: Example | None = None) -> torch.export.ExportedProgram:
    """Returns a module as a program of torch.export, for any batch size.

    Args:
        module: a pool, a model, or any module that contains a pool.
        example: an input, or a tuple of all inputs, such as features and their weights; it fixes all sizes but that of
            the batch.

    Raises:
        PolycovError: if a pool in it needs an eigendecomposition, which cannot be exported.
        NotFittedError: if a projection in it is not fitted.
    """
    for pool in _pools(module):
        _check_exportable(pool)
    # torch.export would take a batch of 1 for a constant
    inputs = tuple(torch.cat([x, x]) if len(x) == 1 else x for x in _inputs(module, example))
    batch = torch.export.Dim("batch", min=1, max=2**20)
    try:
        with evaluation_mode(module), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the tracer's own
            return torch.export.export(module, inputs, dynamic_shapes=({0: batch},) * len(inputs), strict=False)
    except Exception as error:  # a network can make the tracer raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise PolycovError(f"torch.export cannot trace this {type(module).__name__}: {reason}.") from error


def _pools(module: nn.Module) -> list[Pool]:
    """The pools of a module, not those that are part of another."""
    pools = [inner for inner in module.modules() if isinstance(inner, Pool)]
    parts = {part for pool in pools for part in pool.modules() if part is not pool}
    return [pool for pool in pools if pool not in parts]


def _check_exportable(pool: Pool) -> None:
    if not pool.is_fitted:
        raise NotFittedError(f"The projection of {pool.spec!r} is not fitted: call pool.fit(batches) before exporting.")
    if pool.needs_eigenvalues:
        raise PolycovError(
            f"{pool.spec!r} needs an eigendecomposition, which ONNX does not have. Use a polynomial: sqrt(5), or "
            "another number of iterations up to 12, instead of sqrt(exact); log(16) instead of log(exact)."
        )


def _inputs(module: nn.Module, example: Example | None) -> tuple[Tensor, ...]:
    example = example_input(module) if example is None else example
    return (example,) if isinstance(example, Tensor) else example


def example_input(module: nn.Module) -> Example:
    """Returns an input to trace a module with: random images for a model, random maps for a pool, one for each input.

    Raises:
        PolycovError: for any other module.
    """
    generator = torch.Generator().manual_seed(0)
    if isinstance(module, Model):
        size, weight = module.preprocessing.size, module.classifier.weight
        return torch.randn(2, 3, size, size, generator=generator).to(weight.device, weight.dtype)
    if isinstance(module, TwoInputPool):
        return tuple(torch.randn(2, side, 16, 16, generator=generator) for side in module.sides)
    if isinstance(module, Pool):
        return torch.randn(2, module.channels, 16, 16, generator=generator)
    raise PolycovError(f"Expected example, an input of {type(module).__name__}.")


def export_program(module: nn.Module, path: Path | str, example: Example | None = None) -> float:
    """Writes a module as a program of torch.export (``.pt2``), and returns its relative distance from the module.

    `torch.export.load(path).module()` runs it. Its extra file "polycov" holds class names and preprocessing of a model.

    Raises:
        PolycovError: as `export_onnx` does.
    """
    program = as_program(module, example)
    extra = {METADATA_KEY: json.dumps(_metadata(module))}

    def save(temporary: Path) -> Callable[..., Tensor]:
        content = io.BytesIO()  # not the file: torch aborts the process when the disk is full
        torch.export.save(program, content, extra_files=extra)
        temporary.write_bytes(content.getbuffer())
        with temporary.open("rb") as file:
            return torch.export.load(file).module()

    return _write_checked(module, Path(path), example, save)


def export_onnx(module: nn.Module, path: Path | str, example: Example | None = None) -> float:
    """Writes a module as ONNX, for any batch size, and returns its relative distance from the module in onnxruntime.

    Args:
        module: a pool, a model, or any module of one output that contains a pool.
        path: path of the file. Its metadata holds class names and preprocessing of a model.
        example: an input or all inputs; see `as_program`. One is called "input" in the file; several have the names of
            the parameters of ``forward``.

    Raises:
        MissingDependencyError: if ONNX is not installed.
        PolycovError: if a pool needs an eigendecomposition, or the file does not agree with the module to 1e-3 (1e-2 in
            half precision). An existing file is then left as it was.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"ONNX needs onnx and onnxscript ({error}). {INSTALL}") from error
    program = as_program(module, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    graph = exported.model.graph
    if len(graph.outputs) != 1:
        raise PolycovError(f"Expected a module of one output, got {len(graph.outputs)} outputs.")
    graph.outputs[0].name = "output"
    if len(graph.inputs) == 1:
        graph.inputs[0].name = "input"
    exported.model.metadata_props[METADATA_KEY] = json.dumps(_metadata(module))

    def save(temporary: Path) -> Callable[..., Tensor]:
        exported.save(str(temporary), external_data=False)
        file = OnnxFile(temporary)
        return lambda *inputs: torch.from_numpy(file(*(x.cpu().numpy() for x in inputs)))

    return _write_checked(module, Path(path), example, save)


_WRITERS: dict[str, Callable[[nn.Module, Path], float]] = {".onnx": export_onnx, ".pt2": export_program}


def _metadata(module: nn.Module) -> dict[str, Any]:
    """What a file says of itself: of a model its description without the data, of a pool its spec."""
    if isinstance(module, Model):
        return {key: value for key, value in module.describe().items() if key != "data"}
    pools = [{"spec": p.spec, "channels": _channels(p), "seed": p.seed} for p in _pools(module)]
    return {"format": FORMAT, "pools": pools}


def _channels(pool: Pool) -> int | tuple[int, int]:
    """The channels that `create_pool` takes."""
    return pool.sides if isinstance(pool, TwoInputPool) else pool.channels


def _write_checked(
    module: nn.Module, path: Path, example: Example | None, save: Callable[[Path], Callable[..., Tensor]]
) -> float:
    """Lets ``save`` write a file and load it again, and moves it into place if it agrees with the module."""
    distance = 0.0
    half = torch.finfo(next(module.parameters(), torch.zeros(())).dtype).bits < 32

    def fill(temporary: Path) -> None:
        nonlocal distance
        distance = _distance(module, save(temporary), example)
        if not distance < (1e-2 if half else 1e-3):  # NaN fails too
            raise PolycovError(
                f"The export differs from the model by {distance:.1e}, relative; {str(path)!r} is not written."
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, fill)
    return distance


def _distance(module: nn.Module, other: Callable[..., Tensor], example: Example | None) -> float:
    """The largest difference over the largest output, on one sample more than was traced."""
    inputs = [torch.cat([x, x[:1].flip(-1)]) for x in _inputs(module, example)]
    with evaluation_mode(module), torch.no_grad():
        expected, output = module(*inputs).double().cpu(), other(*inputs).double().cpu()
    largest = float(expected.abs().max())
    return float((output - expected).abs().max()) / (largest or 1.0)
