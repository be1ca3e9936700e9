"""What a comparison would do: settings, images, hours on this machine and disk, before anything is computed."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from polycov.comparing.grid import Limits, Setting, check_dims, check_methods, grid, grid_notes, named_stages
from polycov.comparing.measure import config_for, pooling_time
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import SeededData
from polycov.comparing.protocols.choose import TRAINED
from polycov.data.images import ImageData
from polycov.data.read import read_splits
from polycov.models.backbones import LAST, Backbone, input_size, load_plugin
from polycov.models.head import DEFAULT_CHANNELS
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.methods import create_pool, parse_method, reads_class_token
from polycov.pooling.spec import Spec
from polycov.progress import SILENT, Progress, duration
from polycov.system.devices import choose_device
from polycov.training.assembly import build_model
from polycov.training.config import Config
from polycov.training.extraction import reduced_channels
from polycov.training.features import build_backbone, build_main

Cost = tuple[float, float]  # seconds, bytes


@dataclass(frozen=True)
class Plan:
    """What a comparison would do.

    Attributes:
        data: the images, in words.
        settings: all of the grid.
        notes: what would not be measured as asked for, and why.
        steps: how long each step takes, in words.
        seconds: estimate for one process of this machine, from measured steps.
        bytes: estimate of the disk needed.
    """

    data: str
    settings: list[Setting]
    notes: list[str]
    steps: list[str]
    seconds: float
    bytes: float

    def words(self) -> list[str]:
        """Returns the plan in lines to read."""
        methods = list(dict.fromkeys(setting.method for setting in self.settings))
        dims = sorted({setting.dim for setting in self.settings if setting.dim is not None})
        seeds = len({setting.seed for setting in self.settings})
        sizes = f" at {', '.join(map(str, dims))} dimensions" if dims else ""
        return [
            f"data: {self.data}",
            f"settings: {len(self.settings)}, of {', '.join(methods)}{sizes}, {seeds} seeds",
            *(f"note: {note}" for note in self.notes),
            *self.steps,
            f"time: about {duration(self.seconds)} for one process on this machine",
            f"disk: about {self.bytes / 1e9:.2f} GB",
        ]


def plan_comparison(options: CompareOptions, progress: Progress = SILENT) -> Plan:
    """Returns what a comparison would do. Nothing is written; the time of a step is measured, on random images.

    Args:
        options: options of the comparison.
        progress: receives what is being measured.

    Raises:
        PolycovError: if an option makes no sense, or there are no such images.
    """
    config = options.config()
    methods, dims = check_methods(options.methods), check_dims(options.dims)
    load_plugin(options.runtime.plugin)
    seeded = SeededData(options.data, read_splits(options.data), options.split)
    data = seeded.split(0)
    size = input_size(config.network.backbone, config.images.size, data.size)
    backbone = build_main(config.network, size)
    channels, width, (main,) = config.pooling.channels or DEFAULT_CHANNELS, backbone.num_features, backbone.groups
    if others := [name for name in named_stages(methods, main) if name != main]:
        backbone = build_backbone(replace(config.network, stage=",".join([main, *others])), size)
    if options.head in TRAINED:
        limits = Limits(channels, channels, len(data["train"]), config.network.stage == "last")
    else:
        stages = {name: (count, min(channels, count)) for name, count in backbone.groups.items()}
        limits = Limits(min(channels, width), width, len(data["train"]), main == LAST, stages)
    settings, notes = grid(methods, dims, options.seeds, limits), grid_notes(methods, dims, limits)
    if options.head in TRAINED:
        steps, cost = _training_cost(options, config, size, data, settings, progress)
    else:
        steps, cost = _probe_cost(options, backbone, size, data, settings, limits, progress)
    return Plan(data.summary(), settings, notes, steps, *cost)


def _probe_cost(
    options: CompareOptions,
    backbone: Backbone,
    size: int,
    data: ImageData,
    settings: list[Setting],
    limits: Limits,
    progress: Progress,
) -> tuple[list[str], Cost]:
    """Extraction from the time of a forward pass; pooling from that of each pool, and a second for each ridge."""
    images, channels = len(data.all_samples()), options.config().pooling.channels or 0
    device = choose_device(options.runtime.device)
    progress.message("measuring a forward pass")
    backbone.to(device)
    with evaluation_mode(backbone), torch.inference_mode():
        forward = _seconds(lambda: backbone(torch.zeros(2, 3, size, size, device=device)).sum().item()) / 2
    stored = []
    for shape in backbone.shapes(size).values():
        kept = reduced_channels(options.store_channels, [shape], channels) or shape.channels
        stored.append((shape, kept))
    bytes_per_image = sum(2 * kept * shape.locations for shape, kept in stored)
    pooling = sum(_pool_seconds(setting, backbone, size, limits) for setting in settings if setting.seed == 0)
    total = images * (forward + pooling * options.seeds) + len(settings)
    steps = [
        f"features: {images} images, {forward:.2f} s each ({duration(images * forward)}); "
        + " and ".join(f"{shape.locations} locations × {kept} of {shape.channels} channels" for shape, kept in stored)
        + f", {bytes_per_image / 1e6:.2f} MB per image",
        f"probes: {duration(total - images * forward)} for pooling and ridge classifiers",
    ]
    return steps, (total, images * bytes_per_image)


def _pool_seconds(setting: Setting, backbone: Backbone, size: int, limits: Limits) -> float:
    method, dim = setting.pool
    width, prefix = limits.channels_before(method, dim), int(reads_class_token(method))
    channels = setting.channels(width) if isinstance(width, int) else width or {}
    pool = create_pool(_without_fits(method, dim), channels, prefix_tokens=prefix)
    return pooling_time(pool, backbone.locations(size), rounds=1) / 1e3


def _without_fits(method: str, dim: int | None) -> str:
    """The spec of a method up to stages that are fitted, which cannot be used before and cost little."""
    return str(_unfitted(parse_method(method, dim=dim)))


def _unfitted(spec: Spec) -> Spec:
    fixed = itertools.takewhile(lambda stage: not getattr(stage.stage.build, "fittable", False), spec.post)
    return replace(spec, post=tuple(fixed), blocks=tuple(map(_unfitted, spec.blocks)))


def _training_cost(
    options: CompareOptions, config: Config, size: int, data: ImageData, settings: list[Setting], progress: Progress
) -> tuple[list[str], Cost]:
    """Steps of training and images of evaluation of each method, at its largest dimension."""
    largest = {setting.method: setting for setting in sorted(settings, key=lambda setting: setting.dim or 0)}
    epochs, batch = config.training.epochs, config.training.batch_size
    steps_per_run = epochs * (len(data["train"]) // batch)
    evaluated = (epochs * len(data["val"]) + len(data["test"])) * (2 if config.training.mirror else 1)
    lines, total, disk = [], 0.0, 0.0
    for method, setting in largest.items():
        progress.message(f"measuring a training step of {method}")
        run = config_for(setting, config, config.pooling.channels or DEFAULT_CHANNELS)
        run = run.replace(pool=_without_fits(*setting.pool), dim=None)
        model = build_model(run, len(data.classes), size).to(choose_device(options.runtime.device))
        train, test = _step_seconds(model, batch, size, options.head == "train")
        count = sum(other.method == method for other in settings)
        seconds = steps_per_run * train + evaluated * test
        total += count * seconds
        disk += count * sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        each = f"{train:.2f} s per step of {batch}, {duration(seconds)} each"
        lines.append(f"{method}: {count} runs × {epochs} epochs, {each}")
    return lines, (total, disk)


def _step_seconds(model: Model, batch: int, size: int, frozen: bool) -> Cost:
    """The seconds of a training step, and of the evaluation of one image."""
    images = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(model.device)
    labels = torch.zeros(batch, dtype=torch.long, device=model.device)
    local = model.backbone(images).detach() if frozen else None

    def train() -> None:
        logits = model(images) if local is None else model.classify(local)
        nn.functional.cross_entropy(logits, labels).backward()
        model.zero_grad()

    def test() -> None:
        (model(images) if local is None else model.classify(local)).sum().item()

    model.train()
    seconds = _seconds(train)
    with evaluation_mode(model), torch.inference_mode():
        return seconds, _seconds(test) / batch


def _seconds(function: Callable[[], object]) -> float:
    """The seconds of a call, after one to warm up."""
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
