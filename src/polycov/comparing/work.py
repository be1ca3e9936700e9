"""Measuring settings, in this process or in another: what is measured comes back as a record."""

import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from polycov.comparing.grid import Setting
from polycov.comparing.measure import measure_frozen, measure_trained, pool_setting
from polycov.comparing.prepare import Prepared
from polycov.comparing.protocols.neighbours import RetrievalProtocol
from polycov.comparing.protocols.protocol import FrozenProtocol
from polycov.comparing.records import Measurement, Record
from polycov.comparing.reduced_features import ReducedFeatures
from polycov.comparing.storage import StoredScores, measure_stored
from polycov.data.images import ImageData
from polycov.engines.engine import EngineOptions
from polycov.engines.work import Work
from polycov.errors import PolycovError
from polycov.progress import SILENT, Progress, TasksOnly
from polycov.system.devices import choose_device
from polycov.system.environment import hardware, versions
from polycov.system.files import cache_folder
from polycov.system.memory_budget import Memory
from polycov.training.extraction import Extracted
from polycov.training.run_folder import RunFolder


@dataclass(frozen=True)
class Measured:
    """A setting and its record.

    Attributes:
        setting: what was measured.
        record: the result.
        run: the files of its training run, by name, if it was trained where the comparison's folder is not.
    """

    setting: Setting
    record: Record
    run: dict[str, bytes]


@dataclass
class MeasureSettings(Work[Setting, Measured]):
    """Measures one setting after another.

    Attributes:
        prepared: the comparison.
        channels: before second-order pools.
        stages: what each stage of the network is reduced to, by its name.
        extracted: local features, for a protocol that judges frozen ones.
        remote: whether the folder of the comparison may be on another machine: runs are then sent back.
        progress: receives the progress of trained settings.
        memory: memory of each process; None for that of the machine it runs on, divided by its cores.
    """

    prepared: Prepared
    channels: int
    extracted: Extracted | None = None
    stages: dict[str, int] = field(default_factory=dict)
    remote: bool = False
    progress: Progress = SILENT
    memory: Memory | None = None
    _reduced: list[ReducedFeatures] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.uses_gpu = self.extracted is None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reduced": []}  # another process reads its own

    def __call__(self, tasks: Iterable[Setting]) -> Iterator[Measured]:
        """Yields the record of each setting."""
        for setting in tasks:
            start = time.time()
            measurement, run = self._measured(setting, self.prepared.data.split(setting.seed))
            device = "cpu" if self.extracted is not None else choose_device(self.prepared.options.runtime.device)
            record = Record(
                method=setting.method,
                dim=setting.dim,
                seed=setting.seed,
                head=self.prepared.options.head,
                measurement=measurement,
                seconds=time.time() - start,
                threads=torch.get_num_threads(),
                hardware=hardware(device),
                versions=versions(),
            )
            yield Measured(setting, record, run)

    def features(self, by_class: bool = False) -> ReducedFeatures:
        """Returns the local features; splits by class have their own, since each keeps what it computed last."""
        if self.extracted is None:
            raise ValueError("A trained head has no local features.")
        if not self._reduced:
            self._require_features(self.extracted)
            options, uses = self.prepared.options, 1 if self.prepared.unseen is None else 2
            here = Memory.of(options.runtime.memory, cache_folder(options.cache)).part(os.cpu_count() or 1)
            self._reduced = [ReducedFeatures(self.extracted, self.memory or here, uses, self.stages) for _ in range(2)]
        return self._reduced[by_class]

    @staticmethod
    def _require_features(extracted: Extracted) -> None:
        missing = [store.folder for store in extracted.stores if not store.folder.is_dir()]
        if missing:
            raise PolycovError(
                f"The features in {str(missing[0])!r} do not exist on the machine {socket.gethostname()!r}: use a "
                "--cache on a disk that all machines of the cluster can read."
            )

    def _measured(self, setting: Setting, data: ImageData) -> tuple[Measurement, dict[str, bytes]]:
        """The measurement of a setting; with a probe and unseen classes, retrieval among these comes with it."""
        prepared, protocol = self.prepared, self.prepared.options.protocol()
        if not isinstance(protocol, FrozenProtocol):
            return self._trained(setting, data)
        unseen = prepared.data.unseen > 0
        measurement = measure_frozen(setting, data, self.features(), self.channels, protocol, unseen=unseen)
        if prepared.unseen is None:
            return measurement, {}
        by_class, retrieval = prepared.unseen.split(setting.seed), RetrievalProtocol()
        other = measure_frozen(setting, by_class, self.features(True), self.channels, retrieval, unseen=True)
        metrics = {"unseen recall@1": other.test_accuracy}
        metrics |= {f"unseen {name}": value for name, value in (other.metrics or {}).items()}
        return replace(measurement, metrics=metrics), {}

    def _trained(self, setting: Setting, data: ImageData) -> tuple[Measurement, dict[str, bytes]]:
        """A training run: in the folder of the comparison, or in a temporary one whose files are sent there."""
        run, progress = self.prepared.folder.run_folder(setting), TasksOnly(self.progress)
        config = replace(self.prepared.config, engine=EngineOptions())
        if not self.remote:
            return measure_trained(setting, data, config, run, self.prepared.cache, progress), {}
        cache = cache_folder(self.prepared.options.cache)
        with TemporaryDirectory(prefix="polycov-") as scratch:
            here = Path(scratch) / run.name
            measurement = measure_trained(setting, data, config, here, cache, progress)
            return replace(measurement, run=str(run)), RunFolder(here).contents()


@dataclass
class MeasureStorage(Work[int, StoredScores]):
    """Measures a feature of one seed after another in fewer bytes.

    Attributes:
        settings: how the features are made.
        key: method and dimension.
    """

    settings: MeasureSettings
    key: tuple[str, int | None]

    def __post_init__(self) -> None:
        self.uses_gpu = False

    def __call__(self, tasks: Iterable[int]) -> Iterator[StoredScores]:
        """Yields the scores of each seed."""
        prepared, reduced = self.settings.prepared, self.settings.features()
        protocol, unseen = prepared.options.protocol(), prepared.data.unseen > 0
        for seed in tasks:
            setting, data = Setting(*self.key, seed), prepared.data.split(seed)
            pooled = pool_setting(setting, data, reduced, self.settings.channels, unseen=unseen).pooled
            yield measure_stored(pooled, protocol)  # type: ignore[arg-type]  # features are judged only if frozen
