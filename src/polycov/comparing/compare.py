"""Comparing methods in one call: prepare, plan, execute."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from polycov.comparing.comparison import Comparison, load_comparison
from polycov.comparing.comparison_values import LocalFeatures
from polycov.comparing.explanations import explain_gallery
from polycov.comparing.grid import (
    METHODS,
    OWN_METHODS,
    Limits,
    Setting,
    first_order_pools,
    grid,
    grid_notes,
    named_stages,
)
from polycov.comparing.launcher import outside_process_group, with_launcher
from polycov.comparing.live import live_table
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import Prepared, prepare
from polycov.comparing.protocols.classifiers import ProbeProtocol
from polycov.comparing.protocols.protocol import FrozenProtocol
from polycov.comparing.records import Record
from polycov.comparing.report.gallery import make_gallery
from polycov.comparing.storage import StorageCurve, StoredScores, stored_in_all
from polycov.comparing.study import stored_points
from polycov.comparing.work import Measured, MeasureSettings, MeasureStorage
from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.pooling.methods import reads_class_token
from polycov.progress import SILENT, Progress, Task
from polycov.system.devices import choose_device
from polycov.system.memory_budget import Memory
from polycov.system.signals import stop_on_signals
from polycov.training.assembly import preprocessing_for
from polycov.training.config import replace_options
from polycov.training.extraction import Extracted, Extraction, reduced_channels
from polycov.training.features import build_backbone, build_main
from polycov.training.run_folder import RunFolder

EXPLAINED = ("probe", "train", "finetune")  # heads with a linear classifier


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
    chosen = with_launcher(chosen, progress)
    with stop_on_signals(), outside_process_group():
        prepared = prepare(chosen, progress)
        with prepared.opened(progress), Engine(chosen.engine) as engine:
            job = ComparisonJob(prepared, engine, progress)
            job.plan()
            try:
                job.execute()
            except KeyboardInterrupt as error:
                where = prepared.folder.path
                raise KeyboardInterrupt(f"Run the same command again to resume the comparison in {where}.") from error
            return job.with_gallery(job.with_storage(load_comparison(prepared.folder.path)))


class ComparisonJob:
    """A comparison in progress. It belongs to one process, which alone writes, no matter which ones measure.

    Args:
        prepared: the comparison.
        engine: who extracts features and measures settings.
        progress: receives messages, progress and intermediate results.

    Attributes:
        settings: all settings of the grid, once planned.
    """

    def __init__(self, prepared: Prepared, engine: Engine, progress: Progress = SILENT) -> None:
        self.prepared, self.engine, self.progress = prepared, engine, progress
        self.options, self.folder = prepared.options, prepared.folder
        self.channels = prepared.config.pooling.channels or 0
        self.protocol = prepared.options.protocol()
        self.memory = Memory.of(prepared.options.runtime.memory, prepared.cache).part(prepared.options.engine.jobs)
        self.settings: list[Setting] = []
        self._last = prepared.config.network.stage == "last"
        self._work = self._measuring(None, {})

    def _measuring(self, extracted: Extracted | None, stages: dict[str, int]) -> MeasureSettings:
        return MeasureSettings(
            self.prepared,
            self.channels,
            extracted,
            stages,
            self.engine.remote,
            self.progress,
            None if self.engine.remote else self.memory,  # another machine has memory of its own
        )

    def plan(self) -> None:
        """Extracts features if the head needs them, and lays out the grid.

        Raises:
            PolycovError: if there is nothing to compare, or features would not fit into memory.
        """
        splits = (self.prepared.data, self.prepared.unseen)
        samples, width = min(data.fewest_training_images() for data in splits if data is not None), self.channels
        stages: dict[str, tuple[int, int]] = {}
        if isinstance(self.protocol, FrozenProtocol):
            extracted = self._extract()
            width = extracted.local.channels
            for name, store in {extracted.stage: extracted.local, **extracted.beside}.items():
                stages[name] = (store.channels, self._fittable_channels(store, samples, name))
            self.channels = stages[extracted.stage][1]
            self._work = self._measuring(extracted, {name: reduced for name, (_, reduced) in stages.items()})
        methods, dims = self.prepared.methods, self.prepared.dims
        limits = Limits(self.channels, width, samples, self._last, stages)
        for note in grid_notes(methods, dims, limits):
            self.progress.message(f"note: {note}")
        self.settings = grid(methods, dims, self.options.seeds, limits)
        if not self.settings:
            raise PolycovError(
                f"There is nothing to compare: choose --dims below {limits.triangle}, or other --methods."
            )
        data = self.prepared.data.split(0)
        self._require_memory(len(data["train"]) + len(data["val"]))

    def _fittable_channels(self, store: FeatureStore, samples: int, stage: str) -> int:
        """The channels that local features are reduced to: as asked for, or as many as there are to fit."""
        asked = self.prepared.config.pooling.channels or 0
        wanted, features = min(asked, store.channels), samples * store.locations
        if features < wanted:
            self.progress.message(
                f"note: {features} channels before second-order pools, not {wanted}: {samples} training images have no "
                f"more local features of stage {stage} to fit them to"
            )
        return min(wanted, features)

    def _require_memory(self, images: int) -> None:
        """Fails now if the largest setting would run out of memory later."""
        largest = max((setting.dim or 0 for setting in self.settings), default=0)
        self.memory.require_block(largest)
        if isinstance(self.protocol, ProbeProtocol):
            self.memory.require_matrix(min(largest, images), f"A probe of {largest} dimensions")

    def execute(self) -> None:
        """Measures the settings that have no record yet."""
        with self.progress.task("settings", len(self.settings)) as task:
            remaining = self._remaining(task)
            for measured in self.engine.run(self._work, remaining):
                self._keep(measured)
                accuracy = measured.record.measurement.test_accuracy
                self._remaining(task, f"{measured.setting}: test {self.protocol.score} {accuracy:.1%}")

    def _remaining(self, task: Task, status: str = "") -> list[Setting]:
        """The settings without a record; shows where the comparison stands."""
        records = self.folder.records()
        done = {record.key for record in records}
        remaining = [setting for setting in self.settings if setting.key not in done]
        task.update(len(self.settings) - len(remaining), status)
        task.show(live_table(records, self.settings, remaining, self.protocol.score))
        return remaining

    def _keep(self, measured: Measured) -> None:
        """Records a setting, unless the images have changed."""
        self.prepared.require_unchanged()
        if measured.run:
            RunFolder(self.folder.run_folder(measured.setting)).replace_contents(measured.run)
        self.folder.append(
            measured.record, self._scored(self.prepared.data.split(measured.setting.seed), measured.record)
        )

    def _scored(self, data: ImageData, record: Record) -> dict[str, list[int]]:
        """Which images got the scores of a record, as indices into all of them; episodes are numbered seed by seed."""
        if self.protocol.unit == "episodes":
            count = record.measurement.test_images
            numbers = list(range(record.seed * count, (record.seed + 1) * count))
            return {"val": numbers, "test": numbers}
        samples = data.all_samples()
        index = {samples.name(i): i for i in range(len(samples))}
        return {split: [index[data[split].name(i)] for i in range(len(data[split]))] for split in ("val", "test")}

    def _extract(self) -> Extracted:
        """Features of all images, computed once."""
        size, data = self.prepared.size, self.prepared.data.split(0)
        network, reader = self.prepared.config.network, self._class_token_reader()
        class_token = reader is not None
        backbone = build_main(network, size, keep_prefix=class_token)
        if class_token and not backbone.prefix_tokens:
            raise PolycovError(
                f"{reader!r} reads a class token, and the backbone {backbone.name!r} gives none: use a "
                "transformer that has one, with --stage last, or leave the method out."
            )
        self._last = backbone.stage is None
        complete = None if self._last else build_backbone(replace(network, stage="last"), size)
        (main,) = backbone.stage_names
        locations, channels = backbone.locations(size), backbone.num_features
        self.folder.write_features(LocalFeatures(backbone.stage_words, size, locations, channels))
        wanted = self.options.store_channels
        if wanted is None and (self.options.unseen_classes or class_token):
            wanted = (
                0  # a stored basis would have seen classes that other seeds hold out; a class token has all channels
            )
        named = named_stages(self.prepared.methods, main)
        shapes = backbone.shapes(size) | (complete or backbone).shapes(size, [name for name in named if name != main])
        kept = {
            # First-order pools of stages by name need all channels.
            name: 0 if named.get(name) else reduced_channels(wanted, [shape], self.channels)
            for name, shape in shapes.items()
        }
        stored = kept.pop(main)
        extraction = Extraction(
            backbone,
            data,
            preprocessing_for(self.prepared.config.images, data, backbone),
            self.prepared.cache,
            complete,
            kept,
            workers=self.engine.readers(self.options.runtime.workers),
            backend=self.options.runtime.backend,
            device=choose_device(self.options.runtime.device),
            class_token=class_token,
            engine=self.engine,
            plugin=self.options.runtime.plugin,
            progress=self.progress,
        )
        # First-order pools need all channels, so next to reduced features their results are stored too.
        return extraction.run(stored, first_order_pools([*METHODS, *self.prepared.methods]) if stored else ())

    def _class_token_reader(self) -> str | None:
        """The first method that reads a class token; None if there is none.

        Raises:
            PolycovError: if there is one, and local features are to be stored in fewer channels.
        """
        methods = [m for m in self.prepared.methods if m not in OWN_METHODS and reads_class_token(m)]
        if methods and self.options.store_channels:
            raise PolycovError(f"{methods[0]!r} reads a class token, which has all channels: use --store-channels 0.")
        return methods[0] if methods else None

    def with_storage(self, comparison: Comparison) -> Comparison:
        """Measures the recommended feature in fewer bytes, unless that is done."""
        recommendation, protocol = comparison.recommendation, self.protocol
        if not (self.options.quantize and recommendation and isinstance(protocol, FrozenProtocol)):
            return comparison
        key = recommendation.chosen.key
        seeds = sorted(record.seed for record in comparison.records if (record.method, record.dim) == key)
        curve = self.folder.storage()
        if curve is None or (curve.method, curve.dim, curve.seeds) != (*key, seeds):
            found: list[StoredScores] = []
            with self.progress.task("fewer bytes", len(seeds)) as task:
                for scores in self.engine.run(MeasureStorage(self._work, key), seeds):
                    found.append(scores)
                    task.advance()
            if missing := found[0].missing:
                self.progress.message(f"note: {missing}")
            curve = StorageCurve(*key, seeds, stored_in_all(found))
            self.folder.write_storage(curve)
        return replace(comparison, study=replace(comparison.study, stored=stored_points(curve, recommendation)))

    def with_gallery(self, comparison: Comparison) -> Comparison:
        """Keeps images for the page, with the predictions of the recommended feature, and explains mistakes."""
        chosen = comparison.recommendation.chosen if comparison.recommendation else None
        for record in comparison.records:
            result = record.measurement
            if chosen is not None and record.key == (*chosen.key, 0) and result.predictions is not None:
                images = make_gallery(self.prepared.data.split(0), result.predictions, result.test_loss)
                gallery = {"of": chosen.label, **images}
                if self.options.explain and self.options.head in EXPLAINED:
                    gallery = explain_gallery(self.prepared, record, self.channels, gallery, self.progress)
                self.folder.write_gallery(gallery)
                return replace(comparison, study=replace(comparison.study, gallery=gallery))
        return comparison
