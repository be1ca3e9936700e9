"""Measures the average of the last layer of a network beside the root of the covariance of an earlier stage.

    python benchmarks/last_mean.py FOLDER --seeds 10 --out last-mean.csv [--backbone resnet50 --weights FILE --jobs …]

A spec reads one stage, so it cannot say this; here the features of `average-last` and of other methods, as `polycov
compare` pools them, are weighed as in `mean-cov` and put side by side, as they are or projected to classes. The
probe, its splits and its choice of a strength are those of `polycov compare FOLDER --seeds N`. Options that this
program does not know are those of `polycov compare`, by their names in Python: `--backbone resnet50`.
"""

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from polycov.comparing.compare import ComparisonJob
from polycov.comparing.grid import Setting
from polycov.comparing.measure import pool_setting
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import prepare
from polycov.comparing.protocols.protocol import Pooled
from polycov.data.images import Split
from polycov.engines.engine import Engine
from polycov.pooling.post.balance import Balance
from polycov.pooling.post.base import Post
from polycov.pooling.post.project import Project
from polycov.pooling.post.statistics import Statistics
from polycov.progress import SILENT
from polycov.training.config import replace_options

ROOT, CHEAP = "isqrt-cov", "covariance | sqrt_minimax(9) | triu"
LAST, MEAN = "average-last", "average"
WAYS: dict[str, tuple[tuple[str, ...], int | None]] = {  # features side by side, and the numbers after a projection
    "root alone": ((ROOT,), None),
    "average of the last layer": ((LAST,), None),
    "mean beside root": ((MEAN, ROOT), None),
    "average of the last layer beside root": ((LAST, ROOT), None),
    "both means beside root": ((MEAN, LAST, ROOT), None),
    "mean beside root, projected": ((MEAN, CHEAP), 512),
    "average of the last layer beside root, projected": ((LAST, CHEAP), 512),
}
Features = dict[Split, Tensor]


def fitted(blocks: list[Tensor], labels: Tensor, dim: int | None) -> list[Post]:
    """The stages ``balance(1, 2) | project(dim, fit=classes, shrinkage=auto)``, or the first alone, fitted: the root,
    which comes last, counts twice, as in `mean-cov`.
    """
    sizes = tuple(block.shape[1] for block in blocks)
    weights = (*[1.0] * (len(blocks) - 1), 2.0)
    stages: list[Post] = [Balance(*weights, features=sum(sizes), blocks=sizes)]
    stages += [Project(sum(sizes), dim, fit="classes", shrinkage="auto")] if dim else []
    rows = torch.cat(blocks, 1)
    for stage in stages:
        known = Statistics()
        known.update(rows, labels)
        stage.fit(known)
        rows = stage(rows)
    return stages


@torch.no_grad()
def side_by_side(pooled: list[Pooled], dim: int | None) -> Pooled:
    """Features side by side; fitted to training images, and for the test to validation images too."""
    labels = pooled[0].labels
    found: list[Features] = []
    for splits in (["train"], ["train", "val"]):
        known = [torch.cat([one.features[split][:] for split in splits]) for one in pooled]  # type: ignore[index]
        stages = fitted(known, torch.cat([labels[split] for split in splits]), dim)  # type: ignore[index]
        joined: Features = {}
        for split in pooled[0].features:
            x = torch.cat([one.features[split][:] for one in pooled], 1)
            for stage in stages:
                x = stage(x)
            joined[split] = x
        found.append(joined)
    return Pooled(found[1], labels, pooled[0].classes, pooled[0].seed, before=found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments, others = parser.parse_known_args()
    options = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(others[::2], others[1::2], strict=True)
    }
    chosen = CompareOptions(arguments.folder, methods=(MEAN, LAST, ROOT), dims=(512,), seeds=arguments.seeds)
    scores: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        chosen = replace_options(chosen, {"out": Path(scratch) / "comparison", **options})
        prepared = prepare(chosen, SILENT)
        with prepared.opened(SILENT), Engine(chosen.engine) as engine:
            job = ComparisonJob(prepared, engine)
            job.plan()
            reduced, protocol = job._work.features(), chosen.protocol()
            for seed in range(arguments.seeds):
                data = prepared.data.split(seed)
                methods = dict.fromkeys(method for names, _ in WAYS.values() for method in names)
                pools = {m: pool_setting(Setting(m, None, seed), data, reduced, job.channels).pooled for m in methods}
                for name, (parts, dim) in WAYS.items():
                    pooled = [pools[part] for part in parts]
                    both = side_by_side(pooled, dim) if len(pooled) > 1 else pooled[0]
                    scores[name].append(100 * float(protocol.judge(both).test.double().mean()))
                print(f"seed {seed}:", ", ".join(f"{values[-1]:.1f}" for values in scores.values()), flush=True)
    rows = []
    for name, values in scores.items():
        gaps = [a - b for a, b in zip(values, scores["root alone"], strict=True)]
        spread = [statistics.stdev(x) / len(x) ** 0.5 if len(x) > 1 else 0.0 for x in (values, gaps)]
        rows.append([name, statistics.mean(values), spread[0], statistics.mean(gaps), spread[1], *values])
        print(f"{name:50} {rows[-1][1]:.1f} ± {spread[0]:.1f}   {rows[-1][3]:+.1f} ± {spread[1]:.1f}")
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            head = ["features", "test", "standard_error", "minus_root", "standard_error_of_difference"]
            writer = csv.writer(file)
            writer.writerow(head + [f"seed_{seed}" for seed in range(arguments.seeds)])
            writer.writerows([[x if isinstance(x, str) else f"{x:.4g}" for x in row] for row in rows])


if __name__ == "__main__":
    main()
