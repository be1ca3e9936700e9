"""Fitting the stages of a pool, in as few passes over the data as possible."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from polycov.errors import NonFiniteError, PolycovError
from polycov.pooling.batches import Batch, read_batches
from polycov.pooling.checks import marked
from polycov.pooling.post.base import Post
from polycov.pooling.post.statistics import Statistics


def check_batches(batches: Iterable[Batch], passes: int, spec: str) -> None:
    """Refuses batches that a pool cannot be fitted to.

    Raises:
        PolycovError: if they are not batches, or can be read only once but several passes are needed.
    """
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise PolycovError(f"Expected batches of features, such as [x] or a DataLoader, got {type(batches).__name__}.")
    if passes > 1 and iter(batches) is batches:
        raise PolycovError(
            f"Fitting {spec!r} takes {passes} passes over the batches, got an iterator that can be read only once. Use "
            "a list or a DataLoader."
        )


def fitted_runs(stages: Sequence[Post]) -> list[list[int]]:
    """Returns the indices of the stages to fit; consecutive ones, which one pass can fit, in one list."""
    runs: list[list[int]] = []
    for index in (i for i, stage in enumerate(stages) if stage.fittable):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _require_finite(rows: Tensor, before: int) -> None:
    """Refuses features that no stage can be fitted to; ``before`` is the number of samples in earlier batches.

    Raises:
        NonFiniteError: if a sample has NaN or Inf.
    """
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        samples = [before + i for i in marked(~finite)[:10]]
        raise NonFiniteError(f"Cannot fit to features with NaN or Inf: samples {samples}, counted over all batches.")


def fit_stages(
    stages: Sequence[Post], batches: Iterable[Batch], pool: Callable[[Tensor, Tensor | None, int], Tensor]
) -> None:
    """Fits the stages of a pool.

    Stages that are fitted are affine, so the statistics of the output of one follow from those of its input: one pass
    is enough for several in a row.

    Args:
        stages: all stages that follow the vector.
        batches: features with weights and labels.
        pool: maps features and weights to the feature after this many of the stages.
    """
    for run in fitted_runs(stages):
        statistics = Statistics()
        for x, weights, labels in read_batches(batches):
            rows = pool(x, weights, run[0])
            _require_finite(rows, statistics.samples)
            statistics.update(rows, labels)
        for index in run:
            stages[index].fit(statistics)
            statistics = statistics.after(stages[index]) if index < run[-1] else statistics
