"""Comparing methods in one call: prepare, plan, execute."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polycov.comparing.comparison import Comparison, load_comparison
from polycov.comparing.explanations import explain_gallery
from polycov.comparing.grid import METHODS, Limits, Setting, first_order_pools, grid, grid_notes
from polycov.comparing.live import live_table
from polycov.comparing.measure import ReducedFeatures, measure_probe, measure_trained
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import Prepared, prepare
from polycov.comparing.records import Record
from polycov.comparing.report.gallery import make_gallery
from polycov.comparing.schedule import StopRequest, helpers, outside_process_group
from polycov.data.feature_store import FeatureStore
from polycov.errors import PolycovError
from polycov.progress import SILENT, Progress, Task, TasksOnly
from polycov.system.devices import choose_device
from polycov.system.environment import hardware, total_memory, versions
from polycov.training.config import replace_options
from polycov.training.experiment import preprocessing_for
from polycov.training.extraction import Extracted, Extraction, reduced_channels
from polycov.training.features import build_backbone


def compare(
    data: str | Path | CompareOptions = "typefaces", *, progress: Progress = SILENT, **options: Any
) -> Comparison:
    """Compares pooling methods on images; an interrupted comparison resumes, and a finished one can be extended.

    Args:
        data: images, as for `polycov.train`; or all options.
        progress: receives messages, progress and intermediate results.
        options: any option of `CompareOptions` by its name, such as ``seeds=10`` or ``dims=(512, 1024)``.

    Returns:
        The comparison; ``.summary``, ``.recommendation`` and ``.report()`` say the rest.

    Raises:
        PolycovError: if an option makes no sense, or there are no such images.
    """
    chosen = data if isinstance(data, CompareOptions) else CompareOptions(str(data))
    if options.get("recipe") is not None:
        chosen = chosen.with_recipe(Path(options["recipe"]))
    chosen = replace_options(chosen, options)
    with outside_process_group() as rank:
        progress = progress if rank == 0 else Progress()
        prepared = prepare(chosen, progress)
        job = ComparisonJob(prepared, progress)
        job.plan()
        stop = StopRequest()
        try:
            with stop.listening(), helpers(chosen, prepared.folder.path, progress):
                job.execute(stop)
        except KeyboardInterrupt as error:
            where = prepared.folder.path
            raise KeyboardInterrupt(f"Run the same command again to resume the comparison in {where}.") from error
        comparison = load_comparison(prepared.folder.path)
        return job.with_gallery(comparison) if rank == 0 else comparison


class ComparisonJob:
    """The work of one process on a comparison.

    Args:
        prepared: the comparison.
        progress: receives messages, progress and intermediate results.

    Attributes:
        settings: all of the grid, once planned.
    """

    def __init__(self, prepared: Prepared, progress: Progress = SILENT) -> None:
        self.prepared, self.progress = prepared, progress
        self.options, self.folder = prepared.options, prepared.folder
        self.channels = prepared.config.pooling.channels or 0
        self.settings: list[Setting] = []
        self._features: ReducedFeatures | None = None
        self._last = prepared.config.network.stage == "last"

    def plan(self) -> None:
        """Extracts features if the head needs them, and lays out the grid.

        Raises:
            PolycovError: if there is nothing to compare, or features would not fit into memory.
        """
        samples, width = self.prepared.data.fewest_training_images(), self.channels
        if self.options.head == "probe":
            extracted = self._extract()
            width = extracted.local.channels
            self.channels = self._fittable_channels(extracted.local, samples)
            self._features = ReducedFeatures(extracted)
        methods, dims = self.prepared.methods, self.prepared.dims
        limits = Limits(self.channels, width, samples, self._last)
        for note in grid_notes(methods, dims, limits):
            self.progress.message(f"note: {note}")
        self.settings = grid(methods, dims, self.options.seeds, limits)
        if not self.settings:
            raise PolycovError(
                f"There is nothing to compare: choose --dims below {limits.triangle}, or other --methods."
            )
        self._require_memory(len(self.prepared.data.split(0).all_samples()))

    def _fittable_channels(self, store: FeatureStore, samples: int) -> int:
        """The channels that local features are reduced to: as asked for, or as many as there are to fit."""
        wanted, features = min(self.channels, store.channels), samples * store.locations
        if features < wanted:
            self.progress.message(
                f"note: {features} channels before second-order pools, not {wanted}: {samples} training images have no "
                "more local features to fit them to"
            )
        return min(wanted, features)

    def _require_memory(self, images: int) -> None:
        largest = max((setting.dim or 0 for setting in self.settings), default=0)
        need, available = 20 * largest * images, total_memory()
        if need > available:
            raise PolycovError(
                f"Features of {largest} dimensions for {images} images take about {need / 2**30:.0f} GB, and this "
                f"machine has {available / 2**30:.0f}. Choose smaller --dims."
            )

    def execute(self, stop: StopRequest, parent: int | None = None) -> None:
        """Measures settings until all of them are done, by this process or another.

        Args:
            stop: ends the work when a signal came.
            parent: process that started this one; the work ends when it is gone.
        """
        with self.progress.task("settings", len(self.settings)) as task:
            while remaining := self._remaining(task):
                measured = ""
                for setting in remaining:
                    if stop.received:
                        raise KeyboardInterrupt
                    if parent not in (None, os.getppid()):
                        return
                    with self.folder.lock(setting) as acquired:
                        if acquired and not self.folder.has_record(setting):
                            measured = self._measure(setting)
                            self._remaining(task, measured)
                if not measured:
                    time.sleep(0.5)  # other processes work on what remains

    def _remaining(self, task: Task, status: str = "") -> list[Setting]:
        """The settings without a record; shows where the comparison stands."""
        records = self.folder.records()
        done = {record.key for record in records}
        remaining = [setting for setting in self.settings if setting.key not in done]
        task.update(len(self.settings) - len(remaining), status)
        task.show(live_table(records, self.settings, remaining))
        return remaining

    def _measure(self, setting: Setting) -> str:
        """Measures and records a setting; returns the result in words."""
        start, data = time.time(), self.prepared.data.split(setting.seed)
        self.prepared.require_unchanged()
        if self._features is not None:
            measurement = measure_probe(setting, data, self._features, self.channels)
        else:
            run = self.folder.run_folder(setting)
            measurement = measure_trained(
                setting, data, self.prepared.config, run, self.prepared.cache, TasksOnly(self.progress)
            )
        record = Record(
            method=setting.method,
            dim=setting.dim,
            seed=setting.seed,
            head=self.options.head,
            measurement=measurement,
            seconds=time.time() - start,
            threads=torch.get_num_threads(),
            hardware=hardware("cpu" if self._features is not None else choose_device(self.options.runtime.device)),
            versions=versions(),
        )
        samples = data.all_samples()
        index = {samples.name(i): i for i in range(len(samples))}
        self.folder.append(record, [index[data["val"].name(i)] for i in range(len(data["val"]))])
        return f"{setting}: test {measurement.test_accuracy:.1%}"

    def _extract(self) -> Extracted:
        """Features of all images, computed once; one process extracts, the others wait."""
        size, data = self.prepared.size, self.prepared.data.split(0)
        network = self.prepared.config.network
        backbone = build_backbone(network, size)
        self._last = backbone.stage is None
        complete = None if self._last else build_backbone(replace(network, stage="last"), size)
        with self.folder.lock_features():
            stage = "last layer" if backbone.stage is None else f"stage {backbone.stage}"
            locations, channels = backbone.locations(size), backbone.num_features
            self.folder.write_features({"stage": stage, "size": size, "locations": locations, "channels": channels})
            stored = reduced_channels(self.options.store_channels, backbone, size, self.channels)
            extraction = Extraction(
                backbone,
                data,
                preprocessing_for(self.prepared.config.images, data, backbone),
                self.prepared.cache,
                complete,
                workers=self.options.runtime.workers,
                device=choose_device(self.options.runtime.device),
                progress=self.progress,
            )
            # First-order pools want all channels: of reduced features, what they give is stored beside.
            return extraction.run(stored, first_order_pools([*METHODS, *self.prepared.methods]) if stored else ())

    def with_gallery(self, comparison: Comparison) -> Comparison:
        """Keeps images for the page, with the predictions of the recommended feature, and explains mistakes."""
        chosen = comparison.recommendation.chosen if comparison.recommendation else None
        for record in comparison.records:
            result = record.measurement
            if chosen is not None and record.key == (*chosen.key, 0) and result.predictions is not None:
                images = make_gallery(self.prepared.data.split(0), result.predictions, result.test_loss)
                gallery = {"of": chosen.label, **images}
                if self.options.explain:
                    gallery = explain_gallery(self.prepared, record, self.channels, gallery, self.progress)
                self.folder.write_gallery(gallery)
                return replace(comparison, study=replace(comparison.study, gallery=gallery))
        return comparison
