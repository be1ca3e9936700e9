"""Matrix functions compared with the exact root: products, time, distance, gradient, and accuracy on real features."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polycov.bench.measure import Tick, interleave, quartiles, ratios, timed_pass
from polycov.bench.tables import EXACT, MODES, Row, Shape
from polycov.comparing.grid import Setting
from polycov.comparing.measure import measure_frozen
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import SeededData
from polycov.comparing.protocols.classifiers import ProbeProtocol
from polycov.comparing.reduced_features import BATCH_SIZE, ReducedFeatures
from polycov.data.read import read_splits
from polycov.models.backbones import input_size
from polycov.models.head import PROBE_CHANNELS
from polycov.pooling.functions.base import MatrixFunction, apply_function
from polycov.pooling.moments import scaled_covariance, second_moment
from polycov.pooling.pool import SecondOrderPool
from polycov.pooling.tokens import maps_to_tokens
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.training.assembly import preprocessing_for
from polycov.training.extraction import Extracted
from polycov.training.features import build_backbone, extract_features

IMAGES = 64  # of the training images, for distances and gradients


@dataclass(frozen=True)
class LocalFeatures:
    """Local features of a dataset, as a comparison by probe uses them: split by seed, reduced to few channels."""

    data: SeededData
    reduced: ReducedFeatures
    channels: int

    def tokens(self, images: int = IMAGES) -> Tensor:
        """Returns the tokens of some training images of the first seed, (images, N, C)."""
        batches = self.reduced.tokens(self.data.split(0), self.channels)["train"]
        return torch.cat([*itertools.islice(batches, -(-images // BATCH_SIZE))])[:images]


def local_features(source: str, progress: Progress = SILENT) -> LocalFeatures:
    """Extracts local features by the default backbone, or takes them from the cache."""
    config = CompareOptions(data=source).config()
    data = SeededData(source, read_splits(source), CompareOptions().split)
    first = data.split(0)
    backbone = build_backbone(config.network, input_size(config.network.backbone, None, first.size))
    store = extract_features(
        backbone, first, preprocessing_for(config.images, first, backbone), cache_folder(None), progress=progress
    )
    return LocalFeatures(data, ReducedFeatures(Extracted(store)), min(PROBE_CHANNELS, store.channels))


def spec_of(function: str) -> str:
    """Returns the spec whose feature is the function of the covariance."""
    return f"covariance | {function} | triu"


def roots(
    functions: Sequence[str], shape: Shape, local: LocalFeatures, rounds: int, seeds: int, tick: Tick | None = None
) -> Iterator[Row]:
    """Measures functions, by their names in a spec; times are relative to the first.

    The distance is that to the exact root of the covariance, relative to it, and the gradient that of its inner product
    with random numbers, along the features; both are averages over images, computed in float32 and compared with the
    exact root in float64. Accuracy is that of a ridge classifier on the full triangle.

    Args:
        functions: such as "sqrt(5)".
        shape: the size of the problem for the times.
        local: real features, for everything else.
        rounds: the number of rounds.
        seeds: seeds of the accuracy.
        tick: called after each round, and after each accuracy.
    """
    pools = {name: SecondOrderPool(local.channels, spec_of(name)) for name in functions}
    matrix_functions = {name: pool.function for name, pool in pools.items()}
    times = {mode: _times(matrix_functions, shape, mode, rounds, tick) for mode in MODES}
    tokens = local.tokens()
    exact = _value_and_gradient(SecondOrderPool(local.channels, spec_of(EXACT)), tokens.double())
    for name, pool in pools.items():
        value, gradient = _value_and_gradient(pool, tokens)
        accuracies = [_accuracy(name, local, seed, tick) for seed in range(seeds)]
        yield {
            "function": name,
            "products": pool.function.products,
            **vars(shape),
            "data": local.data.source,
            **{f"{mode}_ms": 1e3 * quartiles(t[name])[1] for mode, t in times.items()},
            **{f"{mode}_ratio": quartiles(ratios(t[name], t[functions[0]]))[1] for mode, t in times.items()},
            "distance": relative(value, exact[0]),
            "gradient_error": relative(gradient, exact[1]),
            "seeds": seeds,
            **_summary("val", [val for val, _ in accuracies]),
            **_summary("test", [test for _, test in accuracies]),
        }


def _times(
    functions: dict[str, MatrixFunction], shape: Shape, mode: str, rounds: int, tick: Tick | None
) -> dict[str, list[float]]:
    """The times of the functions alone, of covariances of random features."""
    rows, _ = scaled_covariance(maps_to_tokens(shape.features()))
    matrix = second_moment(rows)
    jobs = {name: timed_pass(mode, partial(apply_function, function), matrix) for name, function in functions.items()}
    return interleave(jobs, rounds, tick)


def _value_and_gradient(pool: SecondOrderPool, tokens: Tensor) -> tuple[Tensor, Tensor]:
    leaf = tokens.clone().requires_grad_()
    value = pool.to(tokens.dtype)(leaf)
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(value, leaf, weights.to(value))
    return value.detach().double(), gradient.double()


def relative(value: Tensor, expected: Tensor) -> float:
    """Returns ‖value − expected‖ / ‖expected‖, averaged over samples.

    Example:
        >>> relative(torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        0.25
    """
    difference, norm = (x.flatten(1).norm(dim=1) for x in (value - expected, expected))
    return float((difference / norm).mean())


def _accuracy(name: str, local: LocalFeatures, seed: int, tick: Tick | None) -> tuple[float, float]:
    """The accuracy on validation and on test images."""
    setting = Setting(spec_of(name), None, seed)
    result = measure_frozen(setting, local.data.split(seed), local.reduced, local.channels, ProbeProtocol())
    if tick:
        tick()
    return result.val_accuracy, result.test_accuracy


def _summary(split: str, values: list[float]) -> Row:
    """The mean and its standard error, in percent."""
    x = 100 * torch.tensor(values, dtype=torch.float64)
    error = float(x.std() / len(x) ** 0.5) if len(x) > 1 else None
    return {f"{split}_accuracy": float(x.mean()) if len(x) else None, f"{split}_error": error}
