"""A run in the making: training or a probe, then predictions for the test images."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData, Split, require_validation
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.models.backbones import ENOUGH_LOCATIONS, input_size
from polycov.models.head import linear_parts
from polycov.models.modes import evaluation_mode
from polycov.pooling.batches import Repeatable
from polycov.pooling.methods import fitted_dim
from polycov.progress import Progress
from polycov.system.memory_budget import Memory
from polycov.training.assembly import build_model, fit_to_data, preprocessing_for
from polycov.training.batches import BatchSource, FeatureBatches, FeatureClassifier, ImageBatches
from polycov.training.config import Config
from polycov.training.features import extract_features, stored_channels
from polycov.training.loop import Trainer
from polycov.training.predictions import Predictions, predict_split
from polycov.training.probe import (
    fit_pool,
    fit_probe,
    fit_reduction,
    pool_batches,
    require_closed_form,
    set_classifier,
)
from polycov.training.ridge import fit_ridge
from polycov.training.run_folder import RunFolder, describe_data

FIXED_OPTIONS = ("freeze", "probe", "optimizer", "batch_size", "seed")  # what a resumed run must not change
FIT_BATCH = 64
IMAGES_TO_FIT = 1024  # images that principal components are computed from before end-to-end training, or more if needed


class Experiment:
    """A run in the making.

    Args:
        config: configuration of the run.
        folder: folder of the run.
        data: dataset to train on.
        cache: folder for local features.
        accelerator: accelerator of the processes.
        progress: receives messages and tasks.

    Attributes:
        model: being trained.
        description: what ``config.json`` says.
        chosen: what was chosen on validation: an epoch, or the strength of the ridge.
        val: predictions for the validation images, if the model has not been trained on them.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: ImageData,
        cache: Path,
        accelerator: Accelerator,
        progress: Progress,
    ) -> None:
        self.folder, self.data, self.cache, self.memory = folder, data, cache, Memory.of(config.runtime.memory, cache)
        self.accelerator, self.progress = accelerator, progress
        self.frozen = config.training.freeze or config.training.probe
        if not self.frozen and Engine(config.engine).shared:
            raise PolycovError(
                "--engine ray and --jobs only extract features, for --freeze or --probe. To train end to end on "
                "several GPUs, use accelerate launch."
            )
        if self.frozen and config.training.mirror:
            raise PolycovError("--mirror needs images: with --freeze or --probe use polycov evaluate RUN --mirror.")
        if config.training.probe or config.training.start == "probe":
            require_validation(data)
        if config.training.probe:
            require_closed_form(config.pooling.pool)
        self.config = config = fit_to_data(config, len(data["train"]), progress)
        size = input_size(config.network.backbone, config.images.size, data.size)
        # A checkpoint holds all weights, so the run it started from is not needed again.
        first = config.replace(init=None) if folder.has_checkpoint else config
        self.model = build_model(first, len(data.classes), size)
        self.model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocessing = preprocessing_for(config.images, data, self.model.backbone, config.training)
        self.model.classes, self.model.preprocessing = data.classes, self.preprocessing
        self.store: FeatureStore | None = None
        self.chosen: dict[str, Any] = {}
        self.val: Predictions | None = None
        self.description: dict[str, Any] = {
            **self.model.describe(),
            "config": config.to_dict(),
            "data": describe_data(data),
            "license": self.model.backbone.license,
        }
        self._describe_model()

    def _describe_model(self) -> None:
        model = self.model
        locations = model.backbone.locations(self.preprocessing.size)
        self.progress.message(
            f"model: {model.backbone.name}, {model.backbone.stage_words}: {locations} locations, "
            f"{model.backbone.num_features} channels → {model.pool.channels} → {model.pool.spec} → "
            f"{model.pool.out_features} dimensions"
        )
        if locations < ENOUGH_LOCATIONS and not model.pool.first_order:
            self.progress.message(
                f"note: second-order statistics of {locations} locations are noisy and may lose to an average. Larger "
                "images (--size) or an earlier stage (--stage) give more."
            )

    def require_same_as_before(self) -> None:
        """Refuses to resume a run that had another model, data or options.

        Raises:
            PolycovError: with the first difference.
        """
        name, before = str(self.folder.path), self.folder.read_description()
        now = json.loads(json.dumps(self.description))  # tuples become lists, as in the file
        try:
            fixed = {option: before["config"]["training"][option] for option in FIXED_OPTIONS}
            for key in ("model", "classes", "preprocessing", "data"):
                if before[key] != now[key]:
                    raise PolycovError(f"Cannot resume {name!r}: {_difference(key, before[key], now[key])}.")
        except (KeyError, TypeError) as error:
            raise PolycovError(f"The config.json of {name!r} was not written by this version.") from error
        for option, value in fixed.items():
            if value != now["config"]["training"][option]:
                raise PolycovError(f"Cannot resume {name!r}: its {option} was {value!r}.")

    def train(self) -> Predictions:
        """Trains, and returns the predictions for the test images."""
        source = self._batch_source()
        if not self.folder.has_checkpoint:
            self._fit_to_data(source)
        network: nn.Module = FeatureClassifier(self.model) if self.frozen else self.model
        trainer = Trainer(
            self.model, network, source, self.config.training, self.folder, self.accelerator, self.progress
        )
        trainer.resume()
        self._write_description()  # not earlier: everything asked for has proved possible
        trainer.train()
        if len(self.data["val"]):
            self.val = trainer.predict("val")
        self.chosen = {"epoch": self.config.training.epochs, "val_accuracy": self.val.accuracy if self.val else None}
        if self.config.training.keep == "best" and trainer.state["best"] is not None:
            self.chosen = trainer.state["best"]
        return trainer.predict("test")

    def probe(self) -> Predictions:
        """Solves for reduction and classifier, and returns the predictions for the test images."""
        store, model, data = self._extract(), self.model.cpu(), self.data
        self._write_description()
        source = FeatureBatches(data, store)
        self._fit_reduction(source)
        labels = self._labels()
        self.progress.message(f"fitting to {sum(map(len, labels.values()))} images in closed form …")
        with evaluation_mode(model):
            reduced = {split: self._reduced(source, split) for split in labels}
            with torch.no_grad():
                ridge = fit_probe(model.pool, reduced, labels, len(data.classes), self.memory).ridge
        set_classifier(model, ridge)
        self.chosen = {"val_accuracy": ridge.val_accuracy, "strength": ridge.strength}
        network = FeatureClassifier(model).to(self.accelerator.device)
        return predict_split(network, source, "test", self.accelerator)

    def _reduced(self, source: BatchSource, split: Split) -> Repeatable[Tensor]:
        """Local features of a split, not augmented, as the pool takes them."""
        chunks = [chunk.tolist() for chunk in torch.arange(len(self.data[split])).split(FIT_BATCH)]
        return Repeatable(lambda: (self.model.reduce(self._local(x)) for x, _, _ in source.batches(split, chunks)))

    def _local(self, inputs: Tensor) -> Tensor:
        """Local features of a batch, which may be images."""
        return inputs if self.frozen else self.model.backbone(inputs.to(self.accelerator.device))

    def _labels(self) -> dict[Split, Tensor]:
        """The classes of the images that a probe is fitted to and chosen on."""
        splits: tuple[Split, ...] = ("train", "val")
        return {split: torch.tensor(list(self.data[split].labels)) for split in splits}

    def _write_description(self) -> None:
        if self.accelerator.is_main_process:
            self.folder.write_description(self.description)

    def _extract(self) -> FeatureStore:
        with Engine(self.config.engine) as engine:
            self.store = extract_features(
                self.model.backbone,
                self.data,
                self.preprocessing,
                self.cache,
                channels=stored_channels(self.model, self.config.pooling.store_channels),
                workers=engine.readers(self.config.runtime.workers),
                backend=self.config.runtime.backend,
                device=self.accelerator.device,
                rank=self.accelerator.process_index,
                world=self.accelerator.num_processes,
                engine=engine,
                plugin=self.config.runtime.plugin,
                progress=self.progress,
            )
        return self.store

    def _batch_source(self) -> BatchSource:
        if self.frozen:
            return FeatureBatches(self.data, self._extract())
        return ImageBatches(self.data, self.preprocessing, self.config.runtime.workers)

    def _fit_to_data(self, source: BatchSource) -> None:
        """Principal components and fitted projections, from training images, before the training begins."""
        self._fit_reduction(source)
        fit_pool(self.model, Repeatable(lambda: self._local_features(source)))
        if self.config.training.start == "probe" and self.config.training.init is None:
            self._start_at_probe(source)

    def _start_at_probe(self, source: BatchSource) -> None:
        """Sets the classifier to the ridge on the features as they are, fitted to the training images alone."""
        model = self.model.to(self.accelerator.device)
        labels = self._labels()
        with evaluation_mode(model):
            images = sum(map(len, labels.values()))
            train, val = (
                pool_batches(model.pool, self._reduced(source, split), len(labels[split]), self.memory, images)
                for split in labels
            )
        ridge = fit_ridge(
            *(train, labels["train"], val, labels["val"], len(self.data.classes)), refit=False, memory=self.memory
        )
        set_classifier(model, ridge)
        self.progress.message(f"start: a probe with validation accuracy {ridge.val_accuracy:.1%}")

    def _fit_reduction(self, source: BatchSource) -> None:
        if linear_parts(self.model.reduction) and self.config.training.init is None:
            fit_reduction(self.model, (features for features, _ in self._local_features(source)))

    @torch.no_grad()
    def _local_features(self, source: BatchSource) -> Iterator[tuple[Tensor, Tensor]]:
        """Local features and labels of the training images: of all if they are on disk, else of some."""
        if self.store is not None:
            train = self.data["train"]
            labels = self._labels()["train"].split(FIT_BATCH)
            yield from zip(self.store.batches(train, FIT_BATCH), labels, strict=True)
            return
        count, pooling = len(self.data["train"]), self.config.pooling
        most = max(IMAGES_TO_FIT, fitted_dim(pooling.pool, pooling.dim))
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].tolist()
        backbone = self.model.backbone.to(self.accelerator.device)
        with evaluation_mode(backbone), self.progress.task("fitting to training images", len(chosen)) as task:
            for images, labels, _ in source.batches("train", [chosen[i : i + 32] for i in range(0, len(chosen), 32)]):
                yield backbone(images.to(self.accelerator.device)).cpu(), labels
                task.advance(len(images))


def _difference(key: str, before: Any, now: Any) -> str:
    if key in ("classes", "data"):
        return f"the {key} {'have' if key == 'classes' else 'has'} changed"
    changed = [name for name in before if before[name] != now.get(name)]
    return f"its {key} was " + ", ".join(f"{name} {before[name]!r}, now {now.get(name)!r}" for name in changed)
