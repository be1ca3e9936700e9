"""A whole run: data, model, training or probe, and the measurement at its end."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from rich.console import Console
from torch import Tensor, nn

from polycov.data.broken import look_for_broken, without_broken
from polycov.data.images import ImageData, check
from polycov.data.read import BUILT_IN, read_data
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.backbones import ENOUGH_LOCATIONS, Backbone, fixed_size
from polycov.models.model import Model, create_model
from polycov.models.pretrained import write_weights
from polycov.models.weights import load_exactly
from polycov.pooling.pool import SecondOrderPool
from polycov.progress import make_console
from polycov.system.files import cache_folder, read_json_lines, try_lock, wait_for_lock, read_json, write_json, write_json_lines
from polycov.training.batches import FeatureFeed, Feed, Head, PictureFeed
from polycov.training.config import Config, DataOptions
from polycov.training.features import LocalFeatures, extract
from polycov.training.loop import Trainer
from polycov.training.probe import fit_pool, fit_reduction, fit_ridge, pooled, set_classifier
from polycov.training.run_folder import describe, load_run, write_config
from polycov.training.scores import Scores, score, wilson

FIXED = ("freeze", "probe", "optimizer", "batch_size", "seed")  # what a run keeps when it goes on
FITTED_ON = 1024  # pictures that principal components are taken from before a training end to end


def train(config: Config, folder: str | Path | None = None, *, resume: bool = False, cache: Path | None = None) -> Path:
    """Trains a classifier as configured, or goes on with a run; returns its folder.

    The folder has ``config.json``, ``metrics.jsonl`` (a line an epoch, and the test at the end),
    ``model.safetensors`` when it is finished, and ``checkpoint.safetensors`` while it is not.

    Args:
        config: of the run.
        folder: of the run; by default a new one in ``runs``.
        resume: go on with the run in the folder.
        cache: for local features; by default POLYCOV_CACHE or the user's cache folder.

    Raises:
        PolycovError: if anything asked for cannot be had.
        NonFiniteError: if a loss is not finite; the last checkpoint is kept.
    """
    config = _with_whole_path(config.check())
    accelerator = _accelerator(config)
    console = make_console(quiet=not accelerator.is_main_process)
    folder = _folder(None if folder is None else Path(folder), config, resume, accelerator)
    if resume and (folder / "model.safetensors").is_file():
        console.print(f"finished before{_last_words(folder)}", markup=False)
        return folder
    with try_lock(folder / "run.lock") if accelerator.is_main_process else nullcontext(True) as mine:
        if not mine:
            raise PolycovError(f"Another process is working on the run {str(folder)!r}.")
        _run(config, folder, resume, cache_folder(cache), accelerator, console)
    return folder


def _run(config: Config, folder: Path, resume: bool, cache: Path, accelerator: Accelerator, console: Console) -> None:
    if accelerator.is_main_process:  # what a kill left half written
        for left in [*folder.glob(".*.safetensors*"), *folder.glob(".tmp*")]:
            left.unlink(missing_ok=True)
    data = load_data(config.data, cache, console, accelerator)
    run = _Start(config, folder, data, cache, accelerator, console, resume)
    scores = run.probe() if config.training.probe else run.train()
    if accelerator.is_main_process:
        low, high = wilson(int(scores.right.sum()), len(scores.right))
        test = {"test_accuracy": scores.accuracy, "low": low, "high": high, "top5": scores.top5}
        test["pictures"] = len(scores.labels)
        metrics = folder / "metrics.jsonl"
        rows = [row for row in read_json_lines(metrics) if "test_accuracy" not in row]  # of a run killed right here
        said = {part: found.top[:, 0].tolist() for part, found in {**run.val, "test": scores}.items()}
        write_json(folder / "predictions.json", said)
        write_json_lines(metrics, [*rows, {**run.chosen, **test}])
        write_config(folder, run.description | {"result": test})
        write_weights(folder, run.model)  # what makes a run finished, so the last
        for name in ("checkpoint.safetensors", "best.safetensors"):
            (folder / name).unlink(missing_ok=True)
        console.print(f"{_last_words(folder)[2:]}\nwritten: {folder}", soft_wrap=True, markup=False)
    accelerator.wait_for_everyone()


def _with_whole_path(config: Config) -> Config:
    """The configuration with the whole path of its folder, so that the run can be used from anywhere."""
    path = Path(config.data.data).expanduser()
    whole = str(path.resolve()) if config.data.data not in BUILT_IN and path.exists() else config.data.data
    return replace(config, data=replace(config.data, data=whole))


def load_data(options: DataOptions, cache: Path, console: Console, accelerator: Accelerator) -> ImageData:
    """Reads the data, and looks for broken pictures: the first process does, the others then know."""
    data = read_data(
        options.data,
        val_fraction=options.val_fraction,
        test_fraction=options.test_fraction,
        split_seed=options.split_seed,
        val_seed=options.val_seed,
    )
    with accelerator.main_process_first():
        found = look_for_broken(data, cache, console, max(options.workers, 1))
    data = check(without_broken(data, found, options.broken, console))
    counts = ", ".join(f"{len(samples)} {part}" for part, samples in data.parts.items() if len(samples))
    notes = f" ({'; '.join(data.notes)})" if data.notes else ""
    console.print(f"data: {data.name}, {len(data.classes)} classes, pictures: {counts}{notes}", markup=False)
    return data


def preprocessing_for(options: DataOptions, data: ImageData, backbone: Backbone) -> Preprocessing:
    """Returns how pictures are prepared: as asked for, else as the data and the backbone want it."""
    return replace(
        backbone.preprocessing(),
        resize=options.resize or round(backbone.size * data.margin),
        squash=data.squash if options.squash is None else options.squash,
        crop=options.crop,
        flip=options.flip,
    )


class _Start:
    """What a run is made of."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        data: ImageData,
        cache: Path,
        accelerator: Accelerator,
        console: Console,
        resume: bool,
    ) -> None:
        self.config, self.folder, self.data, self.cache = config, folder, data, cache
        self.accelerator, self.console = accelerator, console
        own = fixed_size(config.model.backbone) or data.side
        size = own if config.data.size is None else config.data.size
        Preprocessing(size, size)  # is it a size?
        started = (folder / "checkpoint.safetensors").is_file()  # then the weights are there
        begin = replace(config, training=replace(config.training, init=None)) if started else config
        self.model = build_model(begin, len(data.classes), size)
        self.model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocessing = preprocessing_for(config.data, data, self.model.backbone)
        self.model.classes, self.model.preprocessing = data.classes, self.preprocessing
        self.frozen = config.training.freeze or config.training.probe
        self.features: LocalFeatures | None = None
        self.chosen: dict[str, Any] = {}
        self.val: dict[str, Scores] = {}  # on the validation part, where the model has not seen it
        if self.frozen and config.training.mirror:
            raise PolycovError("--mirror needs pictures: with --freeze and --probe use polycov evaluate RUN --mirror.")
        if config.training.probe and not len(data["val"]):
            raise PolycovError("The probe chooses on validation pictures: expected --val-fraction above 0, and enough.")
        self.description = describe(config, self.model, data)
        if resume:
            self._compare(read_json(folder / "config.json"))
        self._tell()

    def _compare(self, before: Any) -> None:
        """Refuses to go on with a run that was another."""
        now = self.description
        try:
            fixed = {name: before["config"]["training"][name] for name in FIXED}
            for what in ("model", "classes", "preprocessing", "data"):
                if _plain(before[what]) != _plain(now[what]):
                    was = _difference(before[what], now[what])
                    raise PolycovError(f"Cannot go on with {str(self.folder)!r}: its {what} was {was}.")
        except (KeyError, TypeError) as error:
            raise PolycovError(f"The config.json of {str(self.folder)!r} is not one of this version.") from error
        for name, value in fixed.items():
            if value != now["config"]["training"][name]:
                raise PolycovError(f"Cannot go on with {str(self.folder)!r}: its {name} was {value!r}.")

    def _write_config(self) -> None:
        if self.accelerator.is_main_process:
            write_config(self.folder, self.description)

    def _tell(self) -> None:
        model = self.model
        stage = "last layer" if model.backbone.stage is None else f"stage {model.backbone.stage}"
        locations = model.backbone.locations(self.preprocessing.size)
        self.console.print(
            f"model: {model.backbone.name}, {stage}: {locations} locations, {model.backbone.num_features} channels → "
            f"{model.pool.channels} → {model.pool.spec} → {model.pool.out_features} dimensions",
            markup=False,
        )
        if locations < ENOUGH_LOCATIONS and isinstance(model.pool, SecondOrderPool):
            self.console.print(
                f"note: second-order statistics of {locations} locations are poor, and may lose to an average. Larger "
                "pictures (--size) or an earlier stage (--stage) have more."
            )

    def _feed(self) -> Feed:
        if not self.frozen:
            return PictureFeed(self.data, self.preprocessing, self.config.data.workers)
        self.features = extract(
            self.model.backbone,
            self.data,
            self.preprocessing,
            self.cache,
            self.console,
            workers=self.config.data.workers,
            device=self.accelerator.device,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
        )
        return FeatureFeed(self.data, self.features)

    def train(self) -> Scores:
        """Trains, and measures on the test part."""
        feed = self._feed()
        if not (self.folder / "checkpoint.safetensors").is_file():
            self._fit_to_data(feed)
        network: nn.Module = Head(self.model) if self.frozen else self.model
        trainer = Trainer(self.model, network, feed, self.config.training, self.folder, self.accelerator, self.console)
        trainer.resume()
        self._write_config()  # now that nothing asked for is impossible
        trainer.train()
        self.chosen = trainer.progress["best"] or {"epoch": self.config.training.epochs}
        if len(self.data["val"]):
            self.val = {"val": trainer.score("val")}
        return trainer.score("test")

    def _fit_to_data(self, feed: Feed) -> None:
        """Principal components and fitted projections, from training pictures, before a training begins."""
        linear = isinstance(self.model.reduction, nn.Conv2d) and self.config.training.init is None
        if linear:
            fit_reduction(self.model, self._local(feed))
        fit_pool(self.model, self._local(feed))

    @torch.no_grad()
    def _local(self, feed: Feed) -> Iterator[Tensor]:
        """Local features of training pictures: all if they are there, else of some."""
        if self.features is not None:
            yield from self.features.batches(self.data["train"])
            return
        count = len(self.data["train"])
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:FITTED_ON].tolist()
        backbone = self.model.backbone.to(self.accelerator.device).eval()
        for images, _, _ in feed.batches("train", [chosen[i : i + 32] for i in range(0, len(chosen), 32)]):
            yield backbone(images.to(self.accelerator.device)).cpu()
        backbone.train()

    def probe(self) -> Scores:
        """Solves for reduction and classifier, and measures on the test part."""
        feed = self._feed()
        self._write_config()
        features, model, data = self.features, self.model.cpu(), self.data
        if features is None:
            raise PolycovError("The probe needs the features of a frozen backbone.")
        if isinstance(model.reduction, nn.Conv2d):
            fit_reduction(model, features.batches(data["train"]))
        fit_pool(model, features.batches(data["train"]))
        train, val = (pooled(model, features.batches(data[part])) for part in ("train", "val"))
        labels = (torch.tensor(list(data[part].labels)) for part in ("train", "val"))
        ridge = fit_ridge(train, next(labels), val, next(labels), len(data.classes))
        set_classifier(model, ridge)
        self.chosen = {"val_accuracy": ridge.val_accuracy, "strength": ridge.strength}
        return score(Head(model).to(self.accelerator.device), feed, "test", self.accelerator)


def build_model(config: Config, classes: int, size: int) -> Model:
    """Makes the model of a configuration; its random weights depend on the seed alone.

    Raises:
        PolycovError: if there is no such backbone, pool or file, or the model of ``init`` is another.
    """
    options, training = config.model, config.training
    reduction = options.reduction or ("linear" if training.probe else "relu")
    channels = options.channels
    if channels is None and not training.probe:
        channels = 256
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(training.seed)
        model = create_model(
            options.backbone,
            pool=options.pool,
            dim=options.dim,
            num_classes=classes,
            channels=channels,
            reduction=reduction,
            weights=options.weights if training.init is None else "none",
            stage=None if options.stage == "last" else options.stage,
            last_stride=options.last_stride,
            size=size,
            seed=training.seed,
        )
    if training.init is not None:
        load_exactly(model, load_run(training.init).model.state_dict(), f"The run {str(training.init)!r}")
    return model


def _accelerator(config: Config) -> Accelerator:
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    try:
        return Accelerator(mixed_precision=config.training.precision)
    except ValueError as error:
        raise PolycovError(f"Cannot train in {config.training.precision} here: {error}") from error


def _folder(folder: Path | None, config: Config, resume: bool, accelerator: Accelerator) -> Path:
    """The folder of the run; a new one must not have a run in it."""
    if folder is None:
        stem = f"{Path(config.data.data).name or 'data'}-{config.model.pool.partition('|')[0].strip()}"
        chosen = [_new_folder(stem)] if accelerator.is_main_process else [Path()]
        folder = broadcast_object_list(chosen)[0] if accelerator.num_processes > 1 else chosen[0]
    elif resume and not (folder / "config.json").is_file():
        raise PolycovError(f"There is no run to go on with in {str(folder)!r}.")
    elif not resume and any((folder / name).is_file() for name in ("config.json", "checkpoint.safetensors")):
        raise PolycovError(f"There is a run in {str(folder)!r} already. Go on with it: polycov train --resume {folder}")
    accelerator.wait_for_everyone()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _new_folder(stem: str) -> Path:
    """A folder in runs that was not there; two processes never get the same."""
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError  # not reached


def _last_words(folder: Path) -> str:
    """The result of a finished run."""
    last = next((row for row in read_json_lines(folder / "metrics.jsonl") if "test_accuracy" in row), None)
    if last is None:
        return ""
    found = f": test accuracy {last['test_accuracy']:.2%} (95 %: {last['low']:.1%} to {last['high']:.1%})"
    chosen = f", validation {last['val_accuracy']:.2%}" if last.get("val_accuracy") is not None else ""
    return f"{found} on {last['pictures']} pictures{chosen}"


def _plain(value: Any) -> Any:
    """As JSON would give it back."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _difference(before: Any, now: Any) -> str:
    if not isinstance(before, dict):
        return "another"
    changed = [key for key in before if _plain(before[key]) != _plain(now.get(key))]
    return ", ".join(f"{key} {before[key]!r}, now {now.get(key)!r}" for key in changed)
