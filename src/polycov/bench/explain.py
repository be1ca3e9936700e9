"""What explanations cost compared with a forward pass of the pool, and whether their maps are faithful."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from polycov.bench.measure import Job, Tick, forward, interleave, time_columns
from polycov.bench.tables import Row, Shape
from polycov.data.broken import exclude_broken, find_broken
from polycov.data.images import ImageData
from polycov.explaining.evidence import collect_evidence
from polycov.explaining.faithfulness import measure_faithfulness
from polycov.explaining.faithfulness_options import FaithfulnessOptions
from polycov.explaining.faithfulness_result import KINDS, SCORES, Faithfulness
from polycov.explaining.intervals import Interval
from polycov.inference.evaluate import evaluation_data
from polycov.pooling.pool import Pool
from polycov.pooling.post.project import Project
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.training.run_folder import load_run

FORWARD = "forward"
METHODS = ("isqrt-cov", "ipccp-ts", "ipccp-fit", "average")
SMALLER = (100, 128)  # locations and channels of EfficientNet-Lite0 at 320 pixels, as a probe reduces it
FITTED = 512  # dimensions of a fitted projection


def explain_times(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Times explanations, interleaved with forward passes of the pool, at this shape and at a smaller one.

    Regions are the contributions of locations; the other rows compute these and, in addition, the contributions of
    pairs of channels or of pairs of locations. A fitted projection has random weights, which take the same time.
    """
    for here in dict.fromkeys((shape, replace(shape, locations=SMALLER[0], channels=SMALLER[1]))):
        for method in METHODS:
            sized = replace(here, dim=min(here.dim, FITTED)) if method == "ipccp-fit" else here
            pool = sized.module(method)
            if isinstance(pool, Pool):
                yield from _times(sized, method, pool.eval(), rounds, tick)


def _times(shape: Shape, method: str, pool: Pool, rounds: int, tick: Tick | None) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    for stage in pool.post:
        if isinstance(stage, Project):
            torch.nn.init.normal_(stage.weight, generator=generator)
            stage.fitted.fill_(True)
    features = shape.features()
    weights = torch.randn(shape.batch, pool.out_features, generator=generator).to(features)
    jobs = {FORWARD: forward(pool, features)} | _jobs(pool, features, weights)
    times = interleave(jobs, rounds, tick)
    for name in jobs:
        columns = time_columns(times[name], times[FORWARD])
        yield {"method": method, "what": name, **vars(shape), **columns}


def _jobs(pool: Pool, features: Tensor, weights: Tensor) -> dict[str, Job]:
    def job(*also: str) -> Job:
        def run() -> None:
            with torch.no_grad():
                evidence = collect_evidence(pool, features)
                for part in ("locations", *also):
                    getattr(evidence, part)(weights)

        return run

    return {"regions": job(), "regions and channels": job("channel_pairs"), "regions and pairs": job("pairs")}


def run_faithfulness(
    folder: Path, options: FaithfulnessOptions, device: str = "cpu", progress: Progress = SILENT
) -> tuple[Faithfulness, list[Row]]:
    """Measures the maps of a finished run on its test images; see `measure_faithfulness`.

    Records are kept in ``faithfulness/records.jsonl`` of the run, from where an interrupted measurement resumes.

    Returns:
        The result, and rows for a CSV file.
    """
    run = load_run(folder)

    def exclude(data: ImageData) -> ImageData:
        return exclude_broken(data, find_broken(data, cache_folder(), progress=progress), "skip", progress)

    samples = evaluation_data(run, None, "test", exclude)["test"]
    records = folder / "faithfulness" / "records.jsonl"
    result = measure_faithfulness(run.model.to(device), samples, options, records=records, progress=progress)
    about = {"pool": run.config.pooling.pool, "data": run.data["name"], "hide": options.hide}
    return result, faithfulness_rows(result, about)


def faithfulness_rows(result: Faithfulness, about: Row) -> list[Row]:
    """Returns the areas and curves of a result as rows; the share is empty for an area under the whole curve."""
    about = {**about, "images": len(result.images), "accuracy": result.accuracy}
    rows: list[Row] = []
    for name in result.maps:
        for kind in KINDS:
            for score in SCORES:
                key: Row = {**about, "map": name, "curve": kind, "score": score}
                others = [other if other in result.maps else None for other in ("random", "exact")]
                gaps = [None if other is None else result.difference(name, other, kind, score) for other in others]
                rows.append({**key, "share": None, **_cells(result.area(name, kind, score), gaps)})
                points = zip(result.fractions, result.curve(name, kind, score), strict=True)
                rows += [{**key, "share": share, **_cells(point)} for share, point in points]
        for label, value in zip(("inside box", "inside box − area"), result.inside(name) or (), strict=False):
            key = {**about, "map": name, "curve": label, "score": "positive evidence"}
            rows.append({**key, "share": None, **_cells(value)})
    return rows


def _cells(value: Interval, gaps: Sequence[Interval | None] = (None, None)) -> Row:
    cells: Row = asdict(value)
    for other, gap in zip(("random", "exact"), gaps, strict=True):
        values = (None,) * 3 if gap is None else (gap.mean, gap.low, gap.high)
        cells |= dict(zip((f"minus_{other}", f"minus_{other}_low", f"minus_{other}_high"), values, strict=True))
    return cells
