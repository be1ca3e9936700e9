"""Ways to run a backbone that is not trained: images per second, and how far each is from plain torch."""

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from polycov.bench.measure import Job, Tick, interleave, quartiles, ratios
from polycov.bench.tables import Row
from polycov.data.transforms import Preprocessing
from polycov.models.backends.engines import Engine, missing_packages
from polycov.models.backends.fold import fold_batch_norm
from polycov.models.backends.frozen import FromPixels, relative_distance
from polycov.system.memory import keep_freed_memory

Run = Callable[[Tensor], list[Tensor]]
PLAIN = "torch"


def backends(
    network: nn.Module,
    preprocessing: Preprocessing,
    pixels: Tensor,
    rounds: int,
    tick: Tick | None = None,
    *,
    compiled: bool = False,
) -> Iterator[Row]:
    """Yields a row for each way, the first of which is plain torch.

    Args:
        network: network in evaluation mode that returns a tensor.
        preprocessing: of its images.
        pixels: a batch of images, (B, H, W, 3).
        rounds: the number of rounds.
        tick: called after each round.
        compiled: also try torch.compile, which needs a C++ compiler.
    """
    keep_freed_memory()
    with torch.inference_mode():
        ways = dict(_ways(network.eval(), preprocessing, pixels, compiled))
        expected = ways[PLAIN](pixels)
        distances = {name: relative_distance(run(pixels), expected) for name, run in ways.items()}
        jobs: dict[str, Job] = {name: partial(run, pixels) for name, run in ways.items()}
        times = interleave(jobs, rounds, tick)
    for name, seconds in times.items():
        low, middle, high = quartiles([len(pixels) / second for second in seconds])
        row: Row = {"backend": name, "images_per_second": middle, "lower_quartile": low, "upper_quartile": high}
        yield row | {"of_plain": quartiles(ratios(times[PLAIN], seconds))[1], "distance": distances[name]}


def _ways(
    network: nn.Module, preprocessing: Preprocessing, pixels: Tensor, compiled: bool
) -> Iterator[tuple[str, Run]]:
    plain = FromPixels(network, preprocessing)
    images = preprocessing.normalise(pixels).contiguous()
    yield PLAIN, lambda _: [network(images)]
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    yield "torch, channels last", lambda x: [last(x)]
    folded, _ = fold_batch_norm(last, pixels[:1])
    yield "torch, BatchNorm folded", lambda x: [folded(x)]
    yield "torch, BatchNorm folded, bfloat16", lambda x: _in_bfloat16(folded, x)
    if compiled:
        yield "torch, BatchNorm folded, torch.compile", _compiled(folded, pixels)
    for name in ("onnxruntime", "openvino"):
        if not missing_packages(name):
            yield name, Engine(name, plain, pixels)
    if not missing_packages("openvino"):
        yield "openvino, bfloat16", Engine("openvino", plain, pixels, precision="bf16")


def _in_bfloat16(network: nn.Module, images: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return [network(images).float()]


def _compiled(network: nn.Module, pixels: Tensor) -> Run:
    compiled = torch.compile(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        compiled(pixels)
    return lambda x: [compiled(x)]
