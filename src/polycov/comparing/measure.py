"""Measuring one setting: on frozen features, or by training."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polycov.comparing.grid import AVERAGE_LAST, Setting, first_order_pool
from polycov.comparing.protocols.protocol import FrozenProtocol, Pooled
from polycov.comparing.records import Measurement, pack
from polycov.comparing.storage import storing
from polycov.data.images import SPLITS, ImageData, Split
from polycov.data.quantize import FeatureDtype
from polycov.errors import PolycovError
from polycov.models.head import DEFAULT_CHANNELS
from polycov.pooling.kernel import kernel_error, uncompressed
from polycov.pooling.methods import create_pool, is_first_order, reads_class_token
from polycov.pooling.pool import Pool
from polycov.pooling.tokens import maps_to_tokens
from polycov.progress import SILENT, Progress
from polycov.training.config import Config
from polycov.training.extraction import CLASS_TOKEN, LAST, Extracted
from polycov.training.probe import channel_components, pool_batches, pool_splits
from polycov.training.run_folder import RunFolder
from polycov.training.train import train

KERNEL_IMAGES = 256
STORED_DTYPES: tuple[FeatureDtype, ...] = ("float16", "int8")
BATCH_SIZE = 64


class ReducedFeatures:
    """Local features of the splits of a dataset, reduced to their leading principal components.

    Components are fitted on the training images of each seed; those of the last seed and channel count are kept.
    """

    def __init__(self, extracted: Extracted) -> None:
        self.store, self.vectors = extracted.local.coordinates, extracted.vectors
        self.width = extracted.local.channels
        self._key: tuple[str, int] | None = None
        self._tokens: dict[str, Tensor] = {}
        self._basis: tuple[str, Tensor, Tensor] | None = None

    def first_order(self, data: ImageData, method: str) -> dict[str, Tensor]:
        """Returns the tokens for a first-order method, (images, N, C): all channels.

        Where local features are stored in fewer channels or not at all, as those of the last layer, N = 1: the pooled
        feature itself, which pools to itself.
        """
        store = self.vectors.get(LAST if method == AVERAGE_LAST else first_order_pool(method) or "")
        if store is None:
            return self.tokens(data, 0)
        return {split: torch.cat([*store.batches(data[split])]) for split in SPLITS}

    def with_class_token(self, data: ImageData, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns tokens with the class token in front, (images, 1 + N, C), reduced as they are."""
        store = self.vectors[CLASS_TOKEN]
        result: dict[str, Tensor] = {}
        for split in SPLITS:
            first, channels = torch.cat([*store.batches(data[split])]), tokens[split].shape[-1]
            if channels < first.shape[-1]:
                mean, components = self._components(data, data.fingerprint())
                first = (first - mean) @ components[:channels].mT
            result[split] = torch.cat([first, tokens[split]], 1)
        return result

    def pool_ms(self, pool: Pool, tokens: Mapping[str, Tensor], seconds: float) -> float:
        """Returns the milliseconds of pooling per image; measured again if tokens were pooled already."""
        if tokens["train"].shape[1] == self.store.locations:
            return 1e3 * seconds / sum(map(len, tokens.values()))
        return pooling_time(pool, self.store.locations, rounds=1)

    def tokens(self, data: ImageData, channels: int) -> dict[str, Tensor]:
        """Returns the tokens of each split, (images, N, C); 0 channels for all, as they are."""
        fingerprint = data.fingerprint()
        if self._key != (fingerprint, channels):
            self._tokens = {}  # free the old ones first
            self._tokens = {split: self._split(data, split, fingerprint, channels) for split in SPLITS}
            self._key = (fingerprint, channels)
        return self._tokens

    def _split(self, data: ImageData, split: Split, fingerprint: str, channels: int) -> Tensor:
        result = torch.empty(len(data[split]), self.store.locations, channels or self.store.channels)
        for batch, maps in zip(result.split(BATCH_SIZE), self.store.batches(data[split], BATCH_SIZE), strict=False):
            tokens = maps_to_tokens(maps)
            if channels:
                mean, components = self._components(data, fingerprint)
                if channels > len(components):
                    raise PolycovError(
                        f"Expected at most {len(components)} channels: the backbone has {self.store.channels}, and "
                        f"principal components need as many local features. Got {channels}."
                    )
                tokens = (tokens - mean) @ components[:channels].mT
            batch.copy_(tokens)
        return result

    def _components(self, data: ImageData, fingerprint: str) -> tuple[Tensor, Tensor]:
        if self._basis is None or self._basis[0] != fingerprint:
            mean, components = channel_components(self.store.batches(data["train"], BATCH_SIZE))
            self._basis = (fingerprint, mean.float(), components.float())
        return self._basis[1], self._basis[2]


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
        channels=pool.channels,
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
        parameters=_parameters(pool, pooled.width, found.classifier),
    )


@dataclass(frozen=True)
class PooledSetting:
    """A fitted pool and what it makes of the images.

    Attributes:
        pool: the pool.
        pooled: its features.
        test_tokens: local features of the test images as the pool gets them.
        width: channels before the reduction; 0 without one.
        ms: milliseconds of pooling per image.
    """

    pool: Pool
    pooled: Pooled
    test_tokens: Tensor
    width: int
    ms: float


def pool_setting(
    setting: Setting, data: ImageData, reduced: ReducedFeatures, channels: int, *, unseen: bool = False
) -> PooledSetting:
    """Fits the pool of a setting, and pools all images; arguments as in `measure_frozen`."""
    method, dim = setting.pool
    first_order = is_first_order(method, dim=dim)
    if first_order:
        tokens = reduced.first_order(data, setting.method)
    else:
        tokens = reduced.tokens(data, setting.channels(channels))
    prefix = int(reads_class_token(method))
    if prefix:
        tokens = reduced.with_class_token(data, tokens)
    pool = create_pool(method, tokens["train"].shape[-1], dim=dim, seed=setting.seed, prefix_tokens=prefix)
    labels = {split: torch.tensor(list(data[split].labels)) for split in SPLITS}
    batches = {split: tokens[split].split(BATCH_SIZE) for split in SPLITS}
    fitted, features, seconds = pool_splits(pool, batches, labels, again=not unseen)
    pooled = Pooled(features, labels, len(data.classes), setting.seed, unseen, fitted)
    ms = reduced.pool_ms(pool, tokens, seconds)
    return PooledSetting(pool, pooled, tokens["test"], 0 if first_order else reduced.width, ms)


def _parameters(pool: Pool, width: int, classifier: int) -> int:
    """Parameters of the reduction from ``width`` channels (0: none), of the pool and of the classifier."""
    reduction = (width + 1) * pool.channels if width else 0
    return reduction + sum(parameter.numel() for parameter in pool.parameters()) + classifier


def _kernel_error(method: str, pool: Pool, compact: Tensor, tokens: Tensor) -> float | None:
    """The kernel error of a sketch, on some test images; None for other methods, and where more follows the sketch."""
    exact = uncompressed(method)
    if exact is None or len(pool.post):
        return None
    full = pool_batches(create_pool(exact, tokens.shape[-1]), tokens[:KERNEL_IMAGES].split(BATCH_SIZE))
    return kernel_error(compact[:KERNEL_IMAGES], full)


def pooling_time(pool: Pool, locations: int, rounds: int = 5) -> float:
    """Returns the milliseconds of pooling per image, the best of several rounds, on random local features."""
    count = locations + pool.prefix_tokens
    tokens = torch.randn(BATCH_SIZE, count, pool.channels, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        pool_batches(pool, [tokens])
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / BATCH_SIZE


def config_for(setting: Setting, config: Config, channels: int) -> Config:
    """Returns the configuration of a run that is one setting of a comparison, with so many channels before its pool.

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
        raise PolycovError(f"The predictions.json of {str(folder)!r} is not of these images. Remove the run.")
    correct = {
        split: torch.tensor(predictions[split]) == torch.tensor(list(data[split].labels)) for split in ("val", "test")
    }
    trained = (model.reduction, model.pool, model.classifier) if config.training.freeze else (model,)
    if result.val_accuracy is None:
        raise PolycovError("A comparison chooses on validation images: expected --val-fraction above 0.")
    return Measurement(
        spec=model.pool.spec,
        channels=model.pool.channels,
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
