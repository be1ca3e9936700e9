"""Measuring one setting."""

import base64
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycov.comparing.grid import Setting
from polycov.data.images import ImageData
from polycov.data.quantize import Stored, restore, store
from polycov.errors import PolycovError
from polycov.pooling.methods import create_pool
from polycov.pooling.pool import FirstOrderPool, Pool
from polycov.pooling.post.project import Project, StreamingPCA
from polycov.system.files import read_json_lines, read_json
from polycov.training.config import Config
from polycov.training.features import LocalFeatures
from polycov.training.probe import fit_ridge

# What a sketch is a sketch of; the kernel error is against it.
EXACT = {"monet-2": "mpn-cov", "monet": "g2denet", "ipccp": "isqrt-cov"}
KERNEL_PICTURES = 256
STORED: tuple[Stored, ...] = ("float16", "int8")
BATCH = 64


def pack(right: Tensor) -> str:
    """Returns booleans as text, eight a byte."""
    return base64.b64encode(np.packbits(right.numpy().astype(bool)).tobytes()).decode()


def unpack(text: str, count: int) -> "np.ndarray[Any, Any]":
    """Returns the booleans that `pack` made a text of."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count).astype(bool)


class Reduced:
    """Local features of the parts of a data set, reduced to their leading principal components.

    Components are fitted on the training part of each seed; those of the last seed and number of channels are kept.
    """

    def __init__(self, features: LocalFeatures) -> None:
        self.features = features
        self.key: tuple[str, int] | None = None
        self.parts: dict[str, Tensor] = {}
        self.basis: tuple[str, Tensor, Tensor] | None = None

    def of(self, data: ImageData, channels: int) -> dict[str, Tensor]:
        """Returns the tokens of each part, (pictures, N, C); all channels as they are for 0."""
        split = data.fingerprint()
        if self.key != (split, channels):
            self.parts = {}  # free the old ones first
            self.parts = {part: self._part(data, part, split, channels) for part in ("train", "val", "test")}
            self.key = (split, channels)
        return self.parts

    def _part(self, data: ImageData, part: str, split: str, channels: int) -> Tensor:
        made = []
        for maps in self.features.batches(data[part], BATCH):
            tokens = maps.flatten(2).mT if maps.ndim == 4 else maps
            if channels:
                mean, components = self._components(data, split)
                if channels > len(components):
                    raise PolycovError(
                        f"Expected at most {len(components)} channels: there are {self.features.channels} in the "
                        f"backbone, and principal components need as many local features. Got {channels}."
                    )
                tokens = (tokens - mean) @ components[:channels].mT
            made.append(tokens.contiguous())
        return torch.cat(made)

    def _components(self, data: ImageData, split: str) -> tuple[Tensor, Tensor]:
        if self.basis is None or self.basis[0] != split:
            pca = StreamingPCA()
            for maps in self.features.batches(data["train"], BATCH):
                tokens = maps.flatten(2).mT if maps.ndim == 4 else maps
                pca.update(tokens.reshape(-1, tokens.shape[-1]))
            mean, components = pca.components(min(self.features.channels, pca.samples))
            self.basis = (split, mean.float(), components.float())
        return self.basis[1], self.basis[2]


@torch.inference_mode()
def apply(pool: Pool, tokens: Tensor) -> Tensor:
    """Returns pooled features, (pictures, D)."""
    return torch.cat([pool(batch) for batch in tokens.split(BATCH)])


def probe(setting: Setting, data: ImageData, reduced: Reduced, channels: int) -> dict[str, Any]:
    """Measures a setting by a ridge classifier on frozen features; returns its record.

    Args:
        setting: what to measure.
        data: split by the seed of the setting.
        reduced: local features.
        channels: before second-order pools; first-order pools get all there are.
    """
    method, dim = setting.pool
    first_order = isinstance(create_pool(method, 64, dim=dim), FirstOrderPool)
    width = 0 if first_order else setting.channels(channels)
    parts = reduced.of(data, width)
    pool = create_pool(method, parts["train"].shape[-1], dim=dim, seed=setting.seed)
    if any(isinstance(stage, Project) for stage in pool.post):
        pool.fit(parts["train"].split(BATCH))
    start = time.perf_counter()
    pooled = {part: apply(pool, tokens) for part, tokens in parts.items()}
    seconds = time.perf_counter() - start
    labels = {part: torch.tensor(list(data[part].labels)) for part in parts}
    ridge = fit_ridge(pooled["train"], labels["train"], pooled["val"], labels["val"], len(data.classes))

    def predict(features: Tensor) -> Tensor:
        return (features @ ridge.weight + ridge.bias).argmax(1)

    predicted = predict(pooled["test"])
    right = predicted == labels["test"]
    stored = {dtype: predict(restore(*store(pooled["test"], dtype))) == labels["test"] for dtype in STORED}
    return {
        "spec": pool.spec,
        "channels": pool.channels,
        "dimensions": pool.out_features,
        "bytes": 4 * pool.out_features,
        "pool_ms": 1e3 * seconds / sum(len(tokens) for tokens in parts.values()),
        "kernel_error": kernel_error(setting, pooled["test"], parts["test"]),
        "strength": ridge.strength,
        "val_accuracy": ridge.val_accuracy,
        "test_accuracy": float(right.double().mean()),
        "stored": {dtype: float(hits.double().mean()) for dtype, hits in stored.items()},
        "test_pictures": len(right),
        "val_right": pack(ridge.val_right),
        "test_right": pack(right),
        **({"predictions": predicted.tolist()} if setting.seed == 0 else {}),
    }


def kernel_error(setting: Setting, compact: Tensor, tokens: Tensor) -> float | None:
    """Returns ‖K′ − K‖ / ‖K‖ of the inner products between test pictures, of a sketch against its exact feature."""
    exact = EXACT.get(setting.method.rpartition("-")[0])
    if exact is None or setting.method.endswith("-fit"):
        return None
    full = apply(create_pool(exact, tokens.shape[-1]), tokens[:KERNEL_PICTURES]).double()
    kernel, sketched = full @ full.mT, compact[:KERNEL_PICTURES].double()
    return float((sketched @ sketched.mT - kernel).norm() / kernel.norm())


def pooling_time(pool: Pool, locations: int, rounds: int = 5) -> float:
    """Returns the milliseconds that pooling a picture takes, the best of several rounds, on random local features."""
    tokens = torch.randn(BATCH, locations, pool.channels, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        apply(pool, tokens)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / BATCH


def trained(setting: Setting, data: ImageData, config: Config, folder: Path, cache: Path) -> dict[str, Any]:
    """Measures a setting by training; the run is kept in its folder, and goes on if it was stopped."""
    from polycov.training.experiment import train
    from polycov.training.run_folder import load_run

    method, dim = setting.pool
    channels = setting.channels(config.model.channels or 256)
    config = replace(
        config,
        data=replace(config.data, val_seed=setting.seed),
        model=replace(config.model, pool=method, dim=dim, channels=channels),
        training=replace(config.training, seed=setting.seed),
    )
    train(config, folder, resume=(folder / "config.json").is_file(), cache=cache)
    last = list(read_json_lines(folder / "metrics.jsonl"))[-1]
    model = load_run(folder).model
    pool = model.pool
    said = read_json(folder / "predictions.json")
    right = {part: torch.tensor(said[part]) == torch.tensor(list(data[part].labels)) for part in ("val", "test")}
    return {
        "spec": pool.spec,
        "channels": pool.channels,
        "dimensions": pool.out_features,
        "bytes": 4 * pool.out_features,
        "pool_ms": pooling_time(pool, model.backbone.locations(model.backbone.size)),
        "test_pictures": len(right["test"]),
        "val_right": pack(right["val"]),
        "test_right": pack(right["test"]),
        **({"predictions": said["test"]} if setting.seed == 0 else {}),
        "val_accuracy": last["val_accuracy"],
        "test_accuracy": last["test_accuracy"],
        "run": str(folder),
    }
