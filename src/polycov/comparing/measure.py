"""Measuring one setting: on frozen features, or by training."""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from polycov.comparing.grid import AVERAGE_LAST, Setting
from polycov.comparing.protocols.protocol import FrozenProtocol, Pooled
from polycov.comparing.records import Measurement, pack
from polycov.comparing.reduced_features import BATCH_SIZE, ReducedFeatures, TokenBatches
from polycov.comparing.storage import storing
from polycov.data.images import SPLITS, ImageData
from polycov.data.quantize import FeatureDtype
from polycov.errors import PolycovError
from polycov.models.head import DEFAULT_CHANNELS
from polycov.pooling.kernel import kernel_error, uncompressed
from polycov.pooling.methods import create_pool, is_first_order, reads_class_token, stage_names
from polycov.pooling.pool import Pool
from polycov.progress import SILENT, Progress
from polycov.system.rows import Rows
from polycov.training.config import Config
from polycov.training.probe import pool_batches, pool_splits
from polycov.training.run_folder import RunFolder
from polycov.training.train import train

KERNEL_IMAGES = 256
STORED_DTYPES: tuple[FeatureDtype, ...] = ("float16", "int8")


def measure_frozen(
    setting: Setting,
    data: ImageData,
    reduced: ReducedFeatures,
    channels: int,
    protocol: FrozenProtocol,
    *,
    unseen: bool = False,
) -> Measurement:
    """Measures a setting on frozen features.

    Args:
        setting: what to measure.
        data: split by the seed of the setting.
        reduced: local features.
        channels: number of channels before second-order pools; first-order pools get all there are.
        protocol: how features are judged.
        unseen: whether the classes of the splits differ.
    """
    pooled = pool_setting(setting, data, reduced, channels, unseen=unseen)
    pool, features = pooled.pool, pooled.pooled.features
    found = protocol.judge(pooled.pooled)
    return Measurement(
        spec=pool.spec,
        channels=pool.stage_channels,
        dimensions=pool.out_features,
        bytes=4 * pool.out_features,
        pool_ms=pooled.ms,
        val_accuracy=float(found.val.double().mean()),
        test_accuracy=float(found.test.double().mean()),
        test_images=len(found.test),
        val_correct=pack(found.val),
        test_correct=pack(found.test),
        kernel_error=_kernel_error(setting.pool[0], pool, features["test"], pooled.test_tokens),
        strength=found.strength,
        stored={dtype: found.stored(storing(dtype)) for dtype in STORED_DTYPES},
        predictions=found.predictions.tolist() if found.predictions is not None and setting.seed == 0 else None,
        test_loss=found.losses if setting.seed == 0 else None,
        metrics=found.metrics or None,
        neighbours=found.neighbours,
        parameters=pooled.reduction + sum(p.numel() for p in pool.parameters()) + found.classifier,
    )


@dataclass(frozen=True)
class PooledSetting:
    """A fitted pool and what it makes of the images.

    Attributes:
        pool: the pool.
        pooled: its features.
        test_tokens: local features of the test images as the pool gets them, in batches.
        reduction: parameters of the reduction before the pool.
        ms: milliseconds of pooling per image.
    """

    pool: Pool
    pooled: Pooled
    test_tokens: TokenBatches
    reduction: int
    ms: float


def pool_setting(
    setting: Setting, data: ImageData, reduced: ReducedFeatures, channels: int, *, unseen: bool = False
) -> PooledSetting:
    """Fits the pool of a setting, and pools all images; arguments as in `measure_frozen`."""
    method, dim = setting.pool
    first_order, names = is_first_order(method, dim=dim), stage_names(method)
    if names != (None,):
        tokens = reduced.stages(data, names, reduce=not first_order)
    elif first_order:
        tokens = reduced.first_order(data, setting.method)
    else:
        tokens = reduced.tokens(data, setting.channels(channels))
    prefix = int(reads_class_token(method))
    if prefix:
        tokens = reduced.with_class_token(data, tokens)
    pool = create_pool(method, tokens["train"].channels, dim=dim, seed=setting.seed, prefix_tokens=prefix)
    labels = {split: torch.tensor(list(data[split].labels)) for split in SPLITS}
    memory = reduced.memory
    fitted, features, seconds = pool_splits(pool, tokens, labels, again=not unseen, memory=memory)
    pooled = Pooled(features, labels, len(data.classes), setting.seed, unseen, fitted, memory)
    ms = 1e3 * seconds / sum(map(len, labels.values()))
    if not is_time_of_pooling(tokens["train"], reduced):
        ms = pooling_time(pool, max(tokens["train"].locations, reduced.store.locations), rounds=1)
    reduction = 0 if first_order else reduced.reduction_parameters(tokens["train"])
    return PooledSetting(pool, pooled, tokens["test"], reduction, ms)


def is_time_of_pooling(tokens: TokenBatches, reduced: ReducedFeatures) -> bool:
    """Returns whether the time to pool tokens is that of pooling local features: they are all there, in memory."""
    return tokens.kept and tokens.locations >= reduced.store.locations


def _kernel_error(method: str, pool: Pool, compact: Rows, tokens: TokenBatches) -> float | None:
    """The kernel error of a sketch, on some test images; None for other methods, and where more follows the sketch."""
    exact = uncompressed(method)
    if exact is None or len(pool.post):
        return None
    some = torch.cat([*itertools.islice(tokens, KERNEL_IMAGES // BATCH_SIZE)])
    full = pool_batches(create_pool(exact, tokens.channels), some.split(BATCH_SIZE), len(some))
    return kernel_error(compact[: len(some)], full[: len(some)])


def pooling_time(pool: Pool, locations: int, rounds: int = 5) -> float:
    """Returns the milliseconds of pooling per image, the best of several rounds, on random local features."""
    count = locations + pool.prefix_tokens
    tokens = torch.randn(BATCH_SIZE, count, pool.channels, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        pool_batches(pool, [tokens], BATCH_SIZE)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / BATCH_SIZE


def config_for(setting: Setting, config: Config, channels: int) -> Config:
    """Returns the configuration of a run that is one setting of a comparison, with this many channels before its pool.

    The average of the last layer is taken as networks do it, without a reduction.
    """
    method, dim = setting.pool
    width = setting.channels(channels)
    if setting.method == AVERAGE_LAST:
        config, width = config.replace(stage="last"), 0
    return config.replace(val_seed=setting.seed, pool=method, dim=dim, channels=width, seed=setting.seed)


def measure_trained(
    setting: Setting, data: ImageData, config: Config, folder: Path, cache: Path, progress: Progress = SILENT
) -> Measurement:
    """Measures a setting by training; the run is kept in its folder, and resumes if it was interrupted."""
    config = config_for(setting, config, config.pooling.channels or DEFAULT_CHANNELS)
    run = RunFolder(folder)
    result = train(config, folder, resume=run.has_config, cache=cache, progress=progress)
    model = run.load().model
    predictions = run.predictions()
    if any(len(predictions.get(split, ())) != len(data[split]) for split in ("val", "test")):
        raise PolycovError(f"The predictions.json of {str(folder)!r} does not match these images. Remove the run.")
    correct = {
        split: torch.tensor(predictions[split]) == torch.tensor(list(data[split].labels)) for split in ("val", "test")
    }
    trained = (model.reduction, model.pool, model.classifier) if config.training.freeze else (model,)
    if result.val_accuracy is None:
        raise PolycovError("A comparison chooses on validation images: expected --val-fraction above 0.")
    return Measurement(
        spec=model.pool.spec,
        channels=model.pool.stage_channels,
        dimensions=model.pool.out_features,
        bytes=4 * model.pool.out_features,
        pool_ms=pooling_time(model.pool, model.backbone.locations(model.backbone.size)),
        val_accuracy=result.val_accuracy,
        test_accuracy=result.test_accuracy,
        test_images=result.images,
        val_correct=pack(correct["val"]),
        test_correct=pack(correct["test"]),
        predictions=predictions["test"] if setting.seed == 0 else None,
        test_loss=run.test_loss() if setting.seed == 0 else None,
        run=str(folder),
        parameters=sum(p.numel() for layer in trained for p in layer.parameters()),
    )
