"""The time of the closed-form probe, compared with a Cholesky factorisation for each strength."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polycov.bench.measure import Tick, interleave, time_columns
from polycov.bench.tables import Row
from polycov.training.ridge import STRENGTHS, fit_ridge

SIZES = ((1000, 512, 50), (2000, 8192, 100), (5000, 8192, 200))  # images, dimensions, classes
VALIDATION = 5  # one image in five
TEST = 1000
NAIVE, OURS = "Cholesky for each strength, float64", "one factorisation"


@dataclass(frozen=True)
class Problem:
    """Features and labels of training, validation and test images."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int


def generate(images: int, dims: int, classes: int) -> Problem:
    """Returns features of unit length whose variances fall off like 1 / rank, with a mean for each class."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, dims + 1).rsqrt()
    centres = torch.randn(classes, dims, generator=generator) * spread

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (count,), generator=generator)
        noise = torch.randn(count, dims, generator=generator) * spread
        return nn.functional.normalize(1 + 0.4 * centres[labels] + noise), labels

    val = images // VALIDATION
    return Problem(draw(images - val), draw(val), draw(TEST), classes)


def naive_probe(problem: Problem) -> tuple[float, Tensor]:
    """Returns the strength with the best validation accuracy, and the classes of the test images after the last fit.

    As one would write it: in float64, on the smaller side, with one factorisation for each strength and another for the
    last fit. Of equal accuracies the one with the smaller squared error is chosen.
    """
    (x, y), (v, w), (t, _) = problem.train, problem.val, problem.test
    indicators = nn.functional.one_hot(w, problem.classes).double()

    def value(strength: float) -> tuple[float, float]:
        outputs = predict(v, strength)
        return float((outputs.argmax(1) == w).double().mean()), -float((outputs - indicators).square().mean())

    predict = _naive_ridge(x, y, problem.classes)
    best = max(STRENGTHS, key=value)
    last = _naive_ridge(torch.cat([x, v]), torch.cat([y, w]), problem.classes)
    return best, last(t, best).argmax(1)


def _naive_ridge(x: Tensor, y: Tensor, classes: int) -> Callable[[Tensor, float], Tensor]:
    mean = x.double().mean(0)
    rows, targets = x.double() - mean, nn.functional.one_hot(y, classes).double()
    level, unit, dual = targets.mean(0), rows.square().sum() / len(rows), len(rows) <= rows.shape[1]
    products, targets = (rows @ rows.mT, targets - level) if dual else (rows.mT @ rows, rows.mT @ targets)

    def predict(features: Tensor, strength: float) -> Tensor:
        damped = products + strength * unit * torch.eye(len(products), dtype=torch.float64)
        coefficients = torch.cholesky_solve(targets, torch.linalg.cholesky(damped))
        centred = features.double() - mean
        return (centred @ rows.mT if dual else centred) @ coefficients + level

    return predict


def probe_times(rounds: int, tick: Tick, sizes: tuple[tuple[int, int, int], ...] = SIZES) -> Iterator[Row]:
    """Yields a row for each size and way: its time, and whether both choose and predict the same.

    Args:
        rounds: timings of each.
        tick: called after each round.
        sizes: images (training and validation), dimensions, classes.
    """
    for images, dims, classes in sizes:
        problem = generate(images, dims, classes)
        found: dict[str, tuple[float, Tensor]] = {}

        def naive(problem: Problem = problem, found: dict[str, tuple[float, Tensor]] = found) -> None:
            found[NAIVE] = naive_probe(problem)

        def ours(problem: Problem = problem, found: dict[str, tuple[float, Tensor]] = found) -> None:
            ridge = fit_ridge(*problem.train, *problem.val, problem.classes)
            found[OURS] = (ridge.strength, ridge.predict(problem.test[0]))

        times = interleave({NAIVE: naive, OURS: ours}, rounds, tick)
        for name in times:
            strength, predictions = found[name]
            yield {
                "images": images,
                "dimensions": dims,
                "classes": classes,
                "probe": name,
                **time_columns(times[name], times[NAIVE]),
                "strength": strength,
                "test_accuracy": float((predictions == problem.test[1]).double().mean()),
                "other_predictions": int((predictions != found[NAIVE][1]).sum()),
            }
