"""The parts that a configuration describes: data, preprocessing, model."""

from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from polycov.data.broken import exclude_broken, find_broken
from polycov.data.images import ImageData, require_trainable
from polycov.data.read import read_data, report_data
from polycov.data.transforms import Preprocessing
from polycov.models.backbones import Backbone
from polycov.models.head import DEFAULT_CHANNELS
from polycov.models.model import Model, create_model
from polycov.models.weights import load_exactly
from polycov.pooling.fitting import supported_size
from polycov.pooling.methods import fitted_dim
from polycov.progress import Progress
from polycov.training.config import Config, ImageOptions, SplitOptions, TrainOptions
from polycov.training.run_folder import load_run


def read_split(data: str, split: SplitOptions) -> ImageData:
    """Reads images and splits them as the options say; see `read_data`."""
    return read_data(
        data,
        val_fraction=split.val_fraction,
        test_fraction=split.test_fraction,
        split_seed=split.split_seed,
        val_seed=split.val_seed,
    )


def load_data(config: Config, cache: Path, accelerator: Accelerator, progress: Progress) -> ImageData:
    """Reads the data and looks for unreadable images: the main process does, the others read the cached result."""
    data = read_split(config.data, config.split)
    with accelerator.main_process_first():
        unreadable = find_broken(data, cache, workers=max(config.runtime.workers, 1), progress=progress)
    data = require_trainable(exclude_broken(data, unreadable, config.split.broken, progress))
    report_data(data, progress)
    return data


def fit_to_data(config: Config, images: int, progress: Progress) -> Config:
    """Returns the configuration with a projection that can be fitted to so many training images."""
    pooling = config.pooling
    pool, dim = supported_size(pooling.pool, pooling.dim, samples=images)
    if config.training.init is not None or (pool, dim) == (pooling.pool, pooling.dim):  # a finished run is fitted
        return config
    asked = fitted_dim(pooling.pool, pooling.dim)
    note = f"the feature has {images} dimensions, not {asked}: as many as there are training images"
    if pooling.dim is None:
        progress.message(f"note: {note}")
    else:
        progress.warn(note)
    return config.replace(pool=pool, dim=dim)


def preprocessing_for(
    images: ImageOptions, data: ImageData, backbone: Backbone, training: TrainOptions | None = None
) -> Preprocessing:
    """Returns how images are prepared: as the options say, else as the data and the backbone call for."""
    training = training or TrainOptions()
    return replace(
        backbone.preprocessing(),
        resize=images.resize or round(backbone.size * data.resize_margin),
        squash=data.squash if images.squash is None else images.squash,
        crop=training.crop,
        flip=training.flip,
        draft=bool(images.draft),
    )


def build_model(config: Config, classes: int, size: int) -> Model:
    """Makes the model of a configuration; its random weights depend on the seed alone.

    Raises:
        PolycovError: if there is no such backbone, pool or file, or the model of ``init`` is another.
    """
    network, pooling, training = config.network, config.pooling, config.training
    # Without a number, a model is reduced as a probe wants it; training has another default.
    channels = DEFAULT_CHANNELS if pooling.channels is None and not training.probe else pooling.channels
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(training.seed)
        model = create_model(
            network.backbone,
            pool=pooling.pool,
            dim=pooling.dim,
            num_classes=classes,
            channels=channels,
            reduction=pooling.reduction or ("linear" if training.probe else "relu"),
            weights=network.weights if training.init is None else "none",
            stage=None if network.stage == "last" else network.stage,
            last_stride=network.last_stride,
            size=size,
            seed=training.seed,
        )
    if training.init is not None:
        load_exactly(model, load_run(training.init).model.state_dict(), f"The run {str(training.init)!r}")
    return model
