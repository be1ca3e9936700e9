"""A backbone that is not trained, run by the fastest engine that computes the same."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polycov.data.transforms import Preprocessing, normalise
from polycov.errors import MissingDependencyError, first_line
from polycov.models.backbones import Backbone
from polycov.models.backends.engines import INSTALL, NEEDS, Engine, Outputs, missing_packages
from polycov.models.backends.fold import fold_batch_norm
from polycov.models.modes import evaluation_mode
from polycov.progress import SILENT, Progress
from polycov.system.memory import keep_freed_memory

Backend = Literal["auto", "torch", "onnxruntime", "openvino"]
FASTEST = ("openvino", "onnxruntime")  # in this order, as measured: docs/benchmarks.md
TOLERANCE = 1e-4  # of the features of an image, relative, in norm; float16, in which they are stored, rounds to 5e-4
CHECKED = 4  # images on which an engine is compared with torch
FEW = 128  # images that are computed sooner than a network is compiled


def require_backend(backend: str) -> None:
    """Refuses a backend that is not installed.

    Raises:
        MissingDependencyError: with the command that installs it.
    """
    missing = missing_packages(backend) if backend in NEEDS else []
    if missing:
        raise MissingDependencyError(f"The backend {backend!r} needs {' and '.join(missing)}. {INSTALL}")


class StageAndLast(nn.Module):
    """Features of a stage and of the last layer of a backbone, in one pass; see `Backbone.with_stage`."""

    def __init__(self, backbone: Backbone, stage: int | str) -> None:
        super().__init__()
        self.backbone, self.stage = backbone, stage

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.backbone.with_stage(images, self.stage)


class FromPixels(nn.Module):
    """A network that takes pixels, (B, H, W, 3) in uint8, beside images that are prepared already."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(preprocessing, name)))

    def forward(self, images: Tensor) -> Any:
        return self.network(normalise(images, self.mean, self.std) if images.dtype == torch.uint8 else images)


class FrozenBackbone:
    """A network whose weights stay as they are, on a backend that is chosen, compiled and checked at the first batch.

    Each engine is compared with torch on the first images. One that is more than `TOLERANCE` away, or cannot take the
    network, is not used, and the reason is reported. The choice depends on what is installed and on the arguments, not
    on times, so that an interrupted run resumes with the same one.

    Args:
        network: from images to a tensor or several, such as a `Backbone`. It must not change afterwards.
        backend: "torch" (with BatchNorm folded into convolutions), "onnxruntime", "openvino"; or "auto": on a CPU the
            first of openvino, onnxruntime and torch that is installed and agrees, else torch. For fewer than 128 images
            "auto" leaves the network as it is.
        images: how many there are in all.
        batch_size: images per batch; others work too.
        preprocessing: if given, images may be pixels in uint8, (B, H, W, 3), and the backend normalises them.
        progress: receives what was chosen, and why.

    Attributes:
        name: the backend in use, after the first batch.
        distance: how far it was from torch: the largest over the images of the relative error in norm.
    """

    def __init__(
        self,
        network: nn.Module,
        backend: Backend = "auto",
        *,
        images: int | None = None,
        batch_size: int = 16,
        preprocessing: Preprocessing | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.network = network if preprocessing is None else FromPixels(network, preprocessing)
        self.backend, self.images = backend, images
        self.batch_size, self.progress = batch_size, progress
        self.name, self.distance = "", 0.0
        self._compute: Callable[[Tensor], Outputs] | None = None
        self._kind: tuple[Any, ...] = ()
        require_backend(backend)
        keep_freed_memory()

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Outputs:
        """Returns the outputs of the network for images (B, 3, H, W), or pixels (B, H, W, 3), as a list."""
        with evaluation_mode(self.network):
            if not len(images):
                return self._eager(images)
            kind = (images.dtype, *images.shape[1:])
            if self._compute is None:
                self.network.to(images.device)
                self._compute, self._kind = self._choose(images), kind
            return self._compute(images) if kind == self._kind else self._eager(images)

    def _eager(self, images: Tensor) -> Outputs:
        return _run(self.network, images)

    def _choose(self, images: Tensor) -> Callable[[Tensor], Outputs]:
        few = self.backend == "auto" and self.images is not None and self.images < FEW
        other = any(parameter.dtype != torch.float32 for parameter in self.network.parameters())
        if few or other:
            self.name = "torch"
            return self._eager
        some = images[:CHECKED]
        expected = self._eager(some)
        for name, build in self._candidates(images):
            try:
                compute = build()
                self.distance = relative_distance(compute(some), expected)
            except Exception as error:  # exporters and compilers raise anything
                reason = f"{type(error).__name__}: {first_line(error)}"
                self.progress.message(f"{name} cannot run this backbone ({reason})")
                continue
            if self.distance <= TOLERANCE:  # NaN is not
                self.name = getattr(compute, "name", name)
                self.progress.message(f"backbone on {self.name}: within {self.distance:.0e} of plain torch")
                return compute
            self.progress.message(f"{name} is not used: it differs from plain torch by {self.distance:.0e}, relative")
        self.name, self.distance = "torch", 0.0
        return self._eager

    def _candidates(self, images: Tensor) -> Iterator[tuple[str, Callable[[], Callable[[Tensor], Outputs]]]]:
        """Backends by preference, with what builds them."""
        shape = (self.batch_size, *images.shape[1:])
        engines: list[str] = [self.backend] if self.backend in FASTEST else []
        if self.backend == "auto":
            engines = [name for name in FASTEST if not missing_packages(name)]
        if images.device.type != "cpu":
            if self.backend in FASTEST:
                self.progress.message(f"{self.backend} runs only on the CPU: torch is used on {images.device}")
            engines = []
        for name in engines:
            yield name, lambda name=name: Engine(name, self.network, images.new_zeros(shape))  # type: ignore[misc]
        if any(isinstance(module, nn.BatchNorm2d) for module in self.network.modules()):
            yield "torch with BatchNorm folded", lambda: self._folded(images[:1])

    def _folded(self, image: Tensor) -> Callable[[Tensor], Outputs]:
        folded, _ = fold_batch_norm(self.network, image)
        folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda images: _run(folded, images)


def _run(network: nn.Module, images: Tensor) -> Outputs:
    if images.is_floating_point():
        images = images.contiguous(memory_format=torch.channels_last)  # the faster layout, which pixels have already
    outputs = network(images)
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def relative_distance(outputs: Outputs, expected: Outputs) -> float:
    """Returns the largest, over images and outputs, of ‖output − expected‖/‖expected‖; NaN if either is not finite.

    Raises:
        ValueError: if the shapes differ.
    """
    if [tuple(x.shape) for x in outputs] != [tuple(x.shape) for x in expected]:
        raise ValueError("its features have another shape")
    distances = []
    for output, right in zip(outputs, expected, strict=True):
        y, x = (value.double().flatten(1) for value in (output, right))
        distances.append(((y - x).norm(dim=1) / x.norm(dim=1).clamp_min(1e-30)).max())
    return float(torch.stack(distances).max())
