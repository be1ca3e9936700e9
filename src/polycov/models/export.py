"""``polycov export``: a model as ONNX, as a program of torch.export, or as a folder for the Hugging Face hub."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from polycov.data.transforms import Preprocessing
from polycov.errors import NotFittedError, PolycovError
from polycov.models.model import Model, probabilities_of
from polycov.models.pretrained import PICKLES, describe_model
from polycov.pooling.pool import HALF, Pool, SecondOrderPool
from polycov.pooling.post.project import Project
from polycov.system.files import write_file

KEY = "polycov"  # of our entry in the metadata of an ONNX file
INSTALL = "Install it with: pip install 'polycov[export]'"


@dataclass
class Export:
    """Write a trained model for other programs: ONNX, torch.export, or a folder for the Hugging Face hub."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    """Folder of a finished run or of a saved model, or a name on the hub."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("model.onnx")
    """FILE.onnx, FILE.pt2 (torch.export), or a folder (config.json, model.safetensors and a model card)."""
    license: str | None = None
    """For a folder: the licence that its card states; by default that of the weights it began with."""


def run(options: Export) -> None:
    """Writes the file or folder, and for a file checks it against the model.

    Raises:
        PolycovError: if there is no such model, it cannot be exported, or what was written does not agree with it.
    """
    from polycov.progress import make_console

    console = make_console()
    model = Model.from_pretrained(options.run)
    if options.out.suffix in WRITERS:
        with console.status("exporting"):
            far = WRITERS[options.out.suffix](model, options.out)
        size = f"{options.out.stat().st_size / 2**20:.1f} MB"
        found = f"{size}, logits within {far:.1e} of the model's (relative, on random pictures)"
        console.print(f"written: {options.out}, {found}", soft_wrap=True, markup=False)
    elif options.out.is_file() or options.out.suffix in (*PICKLES, ".safetensors", ".json", ".tflite", ".mlmodel"):
        raise PolycovError(f"Expected --out to be FILE.onnx, FILE.pt2 or a folder, got {str(options.out)!r}.")
    else:
        if options.license is not None:
            model.about["license"] = options.license
        model.save_pretrained(options.out)
        console.print(f"written: {options.out}", soft_wrap=True, markup=False)


def example_of(module: nn.Module) -> Tensor:
    """Returns an input to trace a module with: random pictures for a model, random maps for a pool."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(module, Model):
        size = module.preprocessing.size
        return torch.randn(2, 3, size, size, generator=generator).to(next(module.parameters()).dtype)
    if isinstance(module, Pool):
        return torch.randn(2, module.channels, 16, 16, generator=generator)
    raise PolycovError(f"Expected an example of the input of {type(module).__name__}: pass example=….")


def as_program(module: nn.Module, example: Tensor | None = None) -> torch.export.ExportedProgram:
    """Returns a module as a program of torch.export, for any number of samples.

    Args:
        module: a pool, a model, or any module of one input that has a pool in it.
        example: an input; other sizes than that of the batch are fixed by it.

    Raises:
        PolycovError: if a pool in it takes an eigendecomposition, which cannot be exported.
        NotFittedError: if a projection in it is not fitted.
    """
    for stage in module.modules():
        if isinstance(stage, Project) and not bool(stage.fitted):
            raise NotFittedError("A projection is not fitted: call pool.fit(batches) before the export.")
    for pool in module.modules():
        if isinstance(pool, SecondOrderPool) and pool.function.exact:
            raise PolycovError(
                f"{pool.spec!r} takes an eigendecomposition, which ONNX does not have. A polynomial has none: "
                "use sqrt(5) or another number of iterations up to 12 instead of sqrt(exact), log(16) for log(exact)."
            )
    example = example_of(module) if example is None else example
    if len(example) == 1:  # one would be taken for a constant
        example = torch.cat([example, example])
    batch = torch.export.Dim("batch", min=1, max=2**20)
    was_training = module.training
    module.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the tracer's own
            return torch.export.export(module, (example,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:  # whatever a network makes the tracer say
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise PolycovError(f"torch.export cannot trace this {type(module).__name__}: {why}") from error
    finally:
        module.train(was_training)


def export_program(module: nn.Module, path: Path | str, example: Tensor | None = None) -> float:
    """Writes a module as a program of torch.export (``.pt2``), and returns how far it is from the module, relative.

    `torch.export.load(path).module()` runs it. Names and preprocessing of a model are in an extra file, "polycov".

    Raises:
        PolycovError: as `export_onnx` does.
    """
    program = as_program(module, example)
    described = json.dumps(description_of(module))

    def save(beside: Path) -> Callable[[Tensor], Tensor]:
        with beside.open("wb") as file:
            torch.export.save(program, file, extra_files={KEY: described})
        with beside.open("rb") as file:
            return torch.export.load(file).module()

    return _write_checked(module, Path(path), example, save)


def export_onnx(module: nn.Module, path: Path | str, example: Tensor | None = None) -> float:
    """Writes a module as ONNX, for any number of samples, and returns how far onnxruntime is from it, relative.

    Args:
        module: a pool, a model, or any module of one input and one output that has a pool in it.
        path: of the file. Class names and preprocessing of a model go into its metadata.
        example: an input; see `as_program`.

    Raises:
        PolycovError: if a pool takes an eigendecomposition, ONNX is not installed, or the file does not agree with the
            module to 1e-3 (1e-2 in half precision). A file that was there stays then as it was.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PolycovError(f"ONNX needs onnx and onnxscript ({error}). {INSTALL}") from error
    program = as_program(module, example)
    described = json.dumps(description_of(module))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    ours = found.model
    if len(ours.graph.inputs) != 1 or len(ours.graph.outputs) != 1:
        raise PolycovError(f"Expected a module of one input and one output, got {len(ours.graph.outputs)} outputs.")
    ours.graph.inputs[0].name, ours.graph.outputs[0].name = "input", "output"
    ours.metadata_props[KEY] = described

    def save(beside: Path) -> Callable[[Tensor], Tensor]:
        found.save(str(beside), external_data=False)
        file = OnnxFile(beside)
        return lambda x: torch.from_numpy(file(x.numpy()))

    return _write_checked(module, Path(path), example, save)


def _write_checked(
    module: nn.Module, path: Path, example: Tensor | None, save: Callable[[Path], Callable[[Tensor], Tensor]]
) -> float:
    """Lets ``save`` write a file and load it again, and puts it in place if it agrees with the module."""
    far = 0.0

    def fill(beside: Path) -> None:
        nonlocal far
        far = _distance(module, save(beside), example)
        if not far < (1e-2 if next(module.parameters(), torch.zeros(())).dtype in HALF else 1e-3):
            raise PolycovError(f"What was exported is {far:.1e} away from the model, relative; {path} is not written.")

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, fill)
    return far


WRITERS: dict[str, Callable[[nn.Module, Path], float]] = {".onnx": export_onnx, ".pt2": export_program}


def description_of(module: nn.Module) -> dict[str, Any]:
    """Returns what the metadata of a file hold: of a model what its config.json does, of a pool its spec."""
    if isinstance(module, Model):
        return describe_model(module) | {key: v for key, v in module.about.items() if key != "data"}
    pools = [m for m in module.modules() if isinstance(m, Pool)]
    return {"pools": [{"spec": p.spec, "channels": p.channels, "seed": p.seed} for p in pools]}


def _distance(module: nn.Module, other: Callable[[Tensor], Tensor], example: Tensor | None) -> float:
    """The largest difference over the largest output, on one sample more than was traced."""
    x = example_of(module) if example is None else example
    x = torch.cat([x, x[:1].flip(-1)])
    was_training = module.training
    with torch.no_grad():
        expected, got = module.eval()(x).double(), other(x).double()
    module.train(was_training)
    largest = float(expected.abs().max())
    return float((got - expected).abs().max()) / (largest or 1.0)


class OnnxFile:
    """An ONNX file that polycov wrote, run by onnxruntime: no torch module is made.

    Attributes:
        described: what its metadata say.

    Raises:
        PolycovError: if onnxruntime is not installed, or the file cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise PolycovError(f"ONNX files need onnxruntime ({error}). {INSTALL}") from error
        if not Path(path).is_file():
            raise PolycovError(f"There is no file {str(path)!r}.")
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        except Exception as error:  # onnxruntime has an exception of its own for every way to fail
            raise PolycovError(f"Cannot read {str(path)!r}: {str(error).splitlines()[0]}") from error
        self.input, self.output = self.session.get_inputs()[0], self.session.get_outputs()[0]
        said = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        try:
            self.described: dict[str, Any] = json.loads(said) if said else {}
        except ValueError as error:
            raise PolycovError(f"The metadata of {str(path)!r} are damaged: {error}.") from error

    def __call__(self, x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Returns the output for a batch.

        Raises:
            PolycovError: if the file does not take such a batch.
        """
        half = self.input.type == "tensor(float16)"
        try:
            return self.session.run(None, {self.input.name: x.astype(np.float16) if half else x})[0]
        except Exception as error:  # onnxruntime again
            raise PolycovError(f"The ONNX file does not take an array of shape {x.shape}: {error}") from error


class OnnxClassifier:
    """A classifier in an ONNX file, used like a `Model`.

    Attributes:
        classes: their names.
        preprocessing: of pictures.

    Raises:
        PolycovError: if the file is not one that `polycov export` wrote of a model.
    """

    def __init__(self, path: Path | str) -> None:
        self.file = OnnxFile(path)
        try:
            self.classes: list[str] = self.file.described["classes"]
            self.preprocessing = Preprocessing.from_dict(self.file.described["preprocessing"])
            if self.file.output.shape[-1] != len(self.classes):
                raise KeyError("classes")
        except (KeyError, TypeError) as error:
            raise PolycovError(f"{str(path)!r} has no names of classes: it is no model that polycov wrote.") from error

    def predict(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Returns the probabilities of the classes, (B, classes), as `Model.predict` does.

        Raises:
            NonFiniteError: if the file gives NaN or Inf.
        """
        return probabilities_of(lambda x: torch.from_numpy(self.file(x.contiguous().numpy())).float(), images, mirror)
