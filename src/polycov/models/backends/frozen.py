"""A backbone that is not trained, run by the fastest engine that computes the same."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

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

T = TypeVar("T")
Wait = Callable[[], Outputs]  # for the outputs of a batch that was begun
Start = Callable[[Tensor], Wait]
Backend = Literal["auto", "torch", "onnxruntime", "openvino"]
FASTEST = ("openvino", "onnxruntime")  # in this order, as measured: docs/benchmarks.md
TOLERANCE = 1e-4  # of the features of an image, relative, in norm; float16, in which they are stored, rounds to 5e-4
CHECKED = 4  # images on which an engine is compared with torch
IN_FLIGHT = 2  # batches that an engine has, so that it need not wait for the next one
FEW = 128  # images that are computed sooner than a network is compiled


def require_backend(backend: str) -> None:
    """Refuses a backend that is not installed.

    Raises:
        MissingDependencyError: with the command that installs it.
    """
    missing = missing_packages(backend) if backend in NEEDS else []
    if missing:
        raise MissingDependencyError(f"The backend {backend!r} needs {' and '.join(missing)}. {INSTALL}")


class ByStage(nn.Module):
    """Features of several stages of a backbone, in one pass; see `Backbone.by_stage`."""

    def __init__(self, backbone: Backbone, names: Sequence[str]) -> None:
        super().__init__()
        self.backbone, self.names = backbone, list(names)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone.by_stage(images, self.names))


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


class WithSums(nn.Module):
    """A network, what follows it, and the sum of the features between the two, (B,), which shows NaN and Inf.

    What follows might hide them: engines say that max(NaN, 0) is 0.
    """

    def __init__(self, network: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.network, self.then = network, then

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network(images)
        return self.then(features), features.flatten(1).sum(1)


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
        then: what follows the network, such as a pool, from its one output to a tensor. An engine computes it too if it
            can; torch does it for outputs that are not finite, because it can say why.
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
        then: nn.Module | None = None,
        images: int | None = None,
        batch_size: int = 16,
        preprocessing: Preprocessing | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.network = network if preprocessing is None else FromPixels(network, preprocessing)
        self.then = then
        self.whole = self.network if then is None else nn.Sequential(self.network, then)
        self.backend, self.images = backend, images
        self.batch_size, self.progress = batch_size, progress
        self.name, self.distance = "", 0.0
        self._start: Start | None = None
        self._kind: tuple[Any, ...] = ()
        self._has_engine = False
        require_backend(backend)
        keep_freed_memory()

    def __call__(self, images: Tensor) -> Outputs:
        """Returns the outputs for images (B, 3, H, W), or pixels (B, H, W, 3), as a list."""
        return self.start(images)()

    @torch.inference_mode()
    def start(self, images: Tensor) -> Wait:
        """Begins with a batch, and returns what waits for its outputs; an engine computes them meanwhile."""
        if not len(images):
            return self._eager(images)
        kind = (images.dtype, *images.shape[1:])
        if self._start is None:
            self.whole.to(images.device)
            with evaluation_mode(self.whole):
                self._start, self._kind = self._choose(images), kind
        return self._start(images) if kind == self._kind else self._eager(images)

    def stream(self, batches: Iterable[tuple[Tensor, T]]) -> Generator[tuple[Outputs, T], None, None]:
        """Yields the outputs for batches of images, in order, with what came beside each.

        A batch is begun before the last one is waited for. While an engine computes on all cores, torch uses one: its
        threads would wait for each other without rest.
        """
        begun: deque[tuple[Wait, T]] = deque()
        threads = torch.get_num_threads()
        try:
            for images, beside in batches:
                begun.append((self.start(images), beside))
                if self._has_engine:
                    torch.set_num_threads(1)
                if len(begun) == IN_FLIGHT:
                    wait, before = begun.popleft()
                    yield wait(), before
            for wait, before in begun:
                yield wait(), before
        finally:
            torch.set_num_threads(threads)

    def _eager(self, images: Tensor) -> Wait:
        with evaluation_mode(self.whole):
            outputs = _run(self.whole, images)
        return lambda: outputs

    def _choose(self, images: Tensor) -> Start:
        few = self.backend == "auto" and self.images is not None and self.images < FEW
        other = any(parameter.dtype != torch.float32 for parameter in self.whole.parameters())
        if few or other:
            self.name = "torch"
            return self._eager
        some = images[:CHECKED]
        expected = self._eager(some)()
        for name, build in self._candidates(images):
            try:
                start, engine = build()
                outputs = start(some)()
                self.distance = relative_distance(outputs[: len(expected)], expected)
            except Exception as error:  # exporters and compilers raise anything
                reason = f"{type(error).__name__}: {first_line(error)}"
                self.progress.message(f"{name} cannot run this backbone ({reason})")
                continue
            if self.distance <= TOLERANCE:  # NaN is not
                self.name, self._has_engine = engine, not engine.startswith("torch")
                self.progress.message(f"backbone on {self.name}: within {self.distance:.0e} of plain torch")
                return self._with_torch_for_errors(start) if len(outputs) > len(expected) else start
            self.progress.message(f"{name} is not used: it differs from plain torch by {self.distance:.0e}, relative")
        self.name, self.distance = "torch", 0.0
        return self._eager

    def _candidates(self, images: Tensor) -> Iterator[tuple[str, Callable[[], tuple[Start, str]]]]:
        """Backends by preference, with what builds them and says their full names."""
        engines: list[str] = [self.backend] if self.backend in FASTEST else []
        if self.backend == "auto":
            engines = [name for name in FASTEST if not missing_packages(name)]
        if images.device.type != "cpu":
            if self.backend in FASTEST:
                self.progress.message(f"{self.backend} runs only on the CPU: torch is used on {images.device}")
            engines = []
        example = images.new_zeros((self.batch_size, *images.shape[1:]))
        for name in engines:
            if self.then is not None and _fits_engines(self.then):
                whole = WithSums(self.network, self.then)
                yield f"{name} with the pool", partial(_with_pool, name, whole, example)
            yield name, partial(self._without_pool, name, example)
        if any(isinstance(module, nn.BatchNorm2d) for module in self.network.modules()):
            yield "torch with BatchNorm folded", lambda: self._folded(images[:1])

    def _with_torch_for_errors(self, start: Start) -> Start:
        """Lets torch compute a batch again whose outputs or sums are not finite: it says what is wrong."""

        def begin(images: Tensor) -> Wait:
            wait = start(images)

            def finish() -> Outputs:
                *outputs, sums = wait()
                if all(bool(values.sum().isfinite()) for values in (*outputs, sums)):
                    return outputs
                with torch.inference_mode():
                    return self._eager(images)()

            return finish

        return begin

    def _without_pool(self, name: str, example: Tensor) -> tuple[Start, str]:
        engine = Engine(name, self.network, example)

        def start(images: Tensor) -> Wait:
            wait = engine.start(images)
            return lambda: self._followed(wait())

        return start, engine.name

    def _followed(self, outputs: Outputs) -> Outputs:
        if self.then is None:
            return outputs
        with torch.inference_mode(), evaluation_mode(self.then):
            return _as_list(self.then(*outputs))

    def _folded(self, image: Tensor) -> tuple[Start, str]:
        folded, _ = fold_batch_norm(self.network, image)
        folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def start(images: Tensor) -> Wait:
            outputs = self._followed(_run(folded, images))
            return lambda: outputs

        return start, "torch with BatchNorm folded"


def _with_pool(name: str, whole: WithSums, example: Tensor) -> tuple[Start, str]:
    engine = Engine(name, whole, example)
    return engine.start, f"{engine.name} with the pool"


def _fits_engines(then: nn.Module) -> bool:
    """Whether engines can compute what follows: they compute in float32, and not on eigenvalues."""
    return not any(getattr(part, "needs_eigenvalues", False) or getattr(part, "wide", False) for part in then.modules())


def _run(network: nn.Module, images: Tensor) -> Outputs:
    if images.is_floating_point():
        images = images.contiguous(memory_format=torch.channels_last)  # the faster layout, which pixels have already
    return _as_list(network(images))


def _as_list(outputs: Any) -> Outputs:
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
