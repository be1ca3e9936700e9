import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polycov.comparing.compare import ComparisonJob
from polycov.comparing.grid import Setting
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import prepare
from polycov.comparing.work import MeasureSettings
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from polycov.training.config import replace_options

SMALL: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "size": 64, "stage": 2, "channels": 6}


def test_a_work_that_was_sent_measures_the_same_or_says_where_features_are_missing(trees: Path, tmp_path: Path) -> None:
    changes = {**SMALL, "workers": 0, "out": tmp_path / "cmp", "cache": tmp_path / "cache"}
    prepared = prepare(replace_options(CompareOptions(str(trees)), changes), LogProgress(lambda _: None))
    with prepared.opened(LogProgress(lambda _: None)):
        job = ComparisonJob(prepared, Engine(), LogProgress(lambda _: None))
        job.plan()
    work, settings = job._work, [Setting("average", None, 0), Setting("ipccp-ts", 8, 0)]
    here = list(work(settings))
    sent: MeasureSettings = pickle.loads(pickle.dumps(work))
    there = list(sent(settings))
    for one, other in zip(here, there, strict=True):
        measured = replace(other.record.measurement, pool_ms=one.record.measurement.pool_ms)
        assert measured == one.record.measurement
    shutil.rmtree(tmp_path / "cache")
    elsewhere: MeasureSettings = pickle.loads(pickle.dumps(work))
    with pytest.raises(PolycovError, match=r"do not exist on the machine .* use a --cache on a disk that all"):
        list(elsewhere(settings))
