"""One pass over images: local features of a frozen backbone, and first-order features beside them, into stores."""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polycov.data.channel_basis import ChannelBasis, fit_basis
from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData, Samples, join
from polycov.data.transforms import Preprocessing
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.models.backbones import LAST as LAST_STAGE
from polycov.models.backbones import Backbone
from polycov.models.backends.frozen import Backend
from polycov.models.local_features import StageShape, split_maps
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import digest
from polycov.progress import SILENT, Progress
from polycov.training.basis_file import BasisFile
from polycov.training.extraction_work import ExtractFeatures, Share

LARGE = 2**20  # bytes per image; larger features are stored reduced unless asked otherwise
STORED_CHANNELS = 256
FEATURES_PER_CHANNEL = 100  # local features that a basis is fitted to
LAST = "average of the last layer"
CLASS_TOKEN = "class token"


@dataclass(frozen=True)
class Extracted:
    """Features of all images.

    Attributes:
        local: local features.
        stage: the name of their stage.
        beside: local features of further stages, by their names.
        vectors: one feature per image, as tokens (1, C), by the first-order pool that gave them, or ``LAST``, or
            ``CLASS_TOKEN``.
    """

    local: FeatureStore
    vectors: dict[str, FeatureStore] = field(default_factory=dict)
    beside: dict[str, FeatureStore] = field(default_factory=dict)
    stage: str = LAST_STAGE

    @property
    def stores(self) -> list[FeatureStore]:
        """All of them."""
        return [self.local, *self.beside.values(), *self.vectors.values()]


def reduced_channels(wanted: int | None, stages: Iterable[StageShape], channels: int) -> int:
    """Returns how many principal components of the local features of each stage to store; 0 for all channels.

    Args:
        wanted: the number asked for, 0 for all; None: all if the features of an image take at most 1 MB, else 256, or
            as many as are pooled.
        stages: the local features of an image, stored side by side.
        channels: channels that are pooled, of each.

    Raises:
        PolycovError: if fewer are asked for than are pooled.
    """
    stages = list(stages)
    numbers = sum(stage.channels for stage in stages) * max(stage.locations for stage in stages)
    most = max(stage.channels for stage in stages)
    least = min(channels, most)
    if wanted is not None and wanted != 0 and wanted < least:
        raise PolycovError(
            f"Expected --store-channels to be 0 (all), or at least {least}, the channels before the pool; got {wanted}."
        )
    if wanted is None:
        wanted = max(STORED_CHANNELS, channels) if 2 * numbers > LARGE else 0
    return wanted if wanted < most else 0


@dataclass
class Extraction:
    """The extraction of features from images, by one process or several.

    Attributes:
        backbone: backbone to compute with; its mode is restored.
        data: dataset whose images to use. Its splits matter only to a basis, which no test image is used for.
        preprocessing: preprocessing of the images, as in evaluation.
        cache: folder of the cache.
        complete: the same backbone with all layers, if it is another, to store the average of the last one too.
        beside: further stages whose local features are stored, with the principal components of each to store: 0 for
            all channels as they are.
        batch_size: images per batch.
        workers: processes that read images.
        backend: what runs the backbone; see `FrozenBackbone`.
        device: device to compute on.
        rank: rank of this process among those that share the work.
        world: the number of these processes.
        class_token: whether to store the class token that the backbone keeps beside the local features, and not with
            them.
        engine: who computes; this process alone writes.
        plugin: what registered the backbone, for other processes.
        progress: receives messages and the number of images done.
    """

    backbone: Backbone
    data: ImageData
    preprocessing: Preprocessing
    cache: Path
    complete: Backbone | None = None
    beside: Mapping[str, int] = field(default_factory=dict)
    batch_size: int = 16
    workers: int = 2
    backend: Backend = "auto"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    world: int = 1
    class_token: bool = False
    engine: Engine = field(default_factory=Engine)
    plugin: str | None = None
    progress: Progress = SILENT

    def run(self, channels: int = 0, pools: Sequence[str] = ()) -> Extracted:
        """Computes what is missing, in one pass over the images, and returns all features.

        Args:
            channels: principal components of the local features to store; 0 for all channels as they are.
            pools: first-order pools whose features are stored too.

        Raises:
            NonFiniteError: if a feature is not finite, or too large for float16.
            PolycovError: if there are too few images to fit the principal components, or the disk is too small.
        """
        if self.engine.remote and self.world > 1:
            raise PolycovError("Use --engine ray in one process: features are stored, and a launched run finds them.")
        samples = self.data.all_samples()
        names = [samples.name(i) for i in range(len(samples))]
        self._work = ExtractFeatures(
            self.backbone,
            self.complete,
            self.preprocessing,
            tuple(pools),
            self.class_token,
            beside=tuple(self.beside),
            batch_size=self.batch_size,
            workers=self.workers,
            backend=self.backend,
            count=len(samples),
            plugin=self.plugin,
            progress=self.progress,
        )
        self._work.to(self.device)
        with evaluation_mode(self._work.networks()), torch.inference_mode():
            if self.rank > 0:
                _barrier()  # the first process prepares the folders
            extracted = self._open(names, channels, pools)
            if self.rank == 0:
                _barrier()
            self._work.bases = [store.basis for store in extracted.stores]
            missing = [set(store.missing(self.rank, self.world)) for store in extracted.stores]
            if any(missing):
                self._announce(extracted)
                self._fill(samples, extracted, missing)
        _barrier()
        return extracted

    def _open(self, names: list[str], channels: int, pools: Sequence[str]) -> Extracted:
        size, progress = self.preprocessing.size, self.progress
        blank = torch.zeros(1, 3, size, size, device=self.device)
        local = self._local_store(0, self._work.split_tokens(self.backbone(blank))[0], names, channels)
        whole = self.complete or self.backbone
        others = zip(self.beside, whole.by_stage(blank, list(self.beside)), strict=True) if self.beside else ()
        beside = {
            name: self._local_store(1 + i, features, names, self.beside[name], name)
            for i, (name, features) in enumerate(others)
        }
        identity = self._identity(self.backbone)

        def vector_store(identity: dict[str, Any], pool: str, width: int) -> FeatureStore:
            return FeatureStore.open(self.cache, {**identity, "pool": pool}, names, (1, width), progress=progress)

        vectors = {pool: vector_store(identity, pool, self.backbone.num_features) for pool in pools}
        if self.class_token:
            vectors[CLASS_TOKEN] = vector_store(identity, "class_token", self.backbone.num_features)
        if self.complete is not None:
            vectors[LAST] = vector_store(self._identity(self.complete), "average", self.complete.num_features)
        return Extracted(local, vectors, beside, ",".join(self.backbone.stage_names))

    def _local_store(
        self, place: int, features: Tensor, names: list[str], channels: int, stage: str | None = None
    ) -> FeatureStore:
        """The store of local features like these, of the backbone, or of a further stage of the complete one.

        Args:
            place: where they are among the features of an image.
            features: of one image.
            names: of the images.
            channels: principal components to store; 0 for all channels.
            stage: the name of a further stage.
        """
        if stage is None:
            identity, shapes = self._identity(self.backbone), self.backbone.shapes(self.preprocessing.size)
        else:
            identity = {**self._identity(self.complete or self.backbone), "stage": stage}
            shapes = (self.complete or self.backbone).shapes(self.preprocessing.size, [stage])
        basis = self._basis(identity, place, list(shapes.values()), channels) if channels else None
        return FeatureStore.open(
            self.cache, identity, names, tuple(features.shape[1:]), basis=basis, progress=self.progress
        )

    def _identity(self, backbone: Backbone) -> dict[str, Any]:
        """What features depend on; a change of any is another folder."""
        with_local = backbone.prefix_tokens and not self.class_token
        prefix = {"prefix_tokens": backbone.prefix_tokens} if with_local else {}
        return prefix | {
            "backbone": backbone.name,
            "stage": backbone.stage,
            "last_stride": backbone.last_stride,
            "weights": digest(backbone.state_dict()),
            "images": self.data.fingerprint(stamps=True),
            "preprocessing": self.preprocessing.identity(),
        }

    def _basis(self, identity: dict[str, Any], place: int, stages: Sequence[StageShape], channels: int) -> ChannelBasis:
        """Principal components of some images outside the test split: the same for every split into train and val.

        Args:
            identity: of the features.
            place: where they are among the features of an image.
            stages: what stands side by side in them.
            channels: principal components of each stage.
        """
        fitted = self._images_to_fit(stages)
        names = "\0".join(fitted.name(i) for i in range(len(fitted)))
        images = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()
        file = BasisFile(self.cache, {**identity, "fitted": images, "channels": channels})
        with file.lock():
            basis = file.load()
            if basis is None:
                local = self._local_features(fitted, place)
                basis = fit_basis((split_maps(features, stages) for features in local), channels)
                file.save(basis)
        return basis

    def _images_to_fit(self, stages: Iterable[StageShape]) -> Samples:
        """Images that have enough local features of each stage for a basis."""
        images = join([self.data["train"], self.data["val"]])
        order = sorted(range(len(images)), key=images.name)
        count = math.ceil(FEATURES_PER_CHANNEL * max(stage.channels / stage.locations for stage in stages))
        chosen = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))[:count]
        return images.select(order[i] for i in chosen.sort().values.tolist())

    def _local_features(self, samples: Samples, place: int) -> Iterator[Tensor]:
        description = f"principal components of {self.backbone.name}"
        with self.progress.task(description, len(samples)) as task:
            for images, indices in self._work.images(samples):
                yield self._work.features(images)[place].float().cpu()
                task.advance(len(indices))

    def _fill(self, samples: Samples, extracted: Extracted, missing: list[set[int]]) -> None:
        indices = sorted(set().union(*missing))
        with self.progress.task(f"extracting features with {self.backbone.name}", len(indices)) as task:
            for batch in self.engine.run(self._work, self._shares(samples, indices, extracted.local.shard_size)):
                for store, lacks, values in zip(extracted.stores, missing, batch.features, strict=True):
                    rows = [i for i, index in enumerate(batch.indices) if index in lacks]
                    if rows:
                        store.write_encoded([batch.indices[i] for i in rows], values[rows])
                task.advance(len(batch.indices))
            for store in extracted.stores:
                store.flush()

    def _shares(self, samples: Samples, indices: list[int], shard_size: int) -> Iterator[Share]:
        """All images for this process alone, so that reading never pauses; for several processes shard by shard."""
        for _, some in itertools.groupby(indices, lambda i: i // shard_size if self.engine.shared else 0):
            chosen = list(some)
            yield Share(samples.select(chosen), chosen)

    def _announce(self, extracted: Extracted) -> None:
        """Says what will be stored, and how much disk it takes."""
        local, images = extracted.local, len(extracted.local.names)
        total = sum(store.bytes_per_image for store in extracted.stores)
        full = sum(2 * math.prod(store.shape) for store in (local, *extracted.beside.values()))
        kept = f"{local.channels} channels"
        alternative = ""
        if local.basis is not None:
            fitted = len(self._images_to_fit(self.backbone.shapes(self.preprocessing.size).values()))
            kept = (
                f"{len(local.basis.components)} principal components of {kept} ({local.basis.share:.1%} of the "
                f"variance, fitted on {fitted} images outside the test split)"
            )
            alternative = f"; all channels would take {_size(full * images)} (--store-channels 0)"
        others = [*(f"stage {name}" for name in extracted.beside), *extracted.vectors]
        beside = f", and {', '.join(others)}" if others else ""
        self.progress.message(
            f"storing {local.locations} locations × {kept}{beside}, in float16: {_size(total)} per image, "
            f"{_size(total * images)} in {str(self.cache)!r}{alternative}"
        )


def _size(count: int) -> str:
    """Bytes in words."""
    unit, name = next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB")) if count >= unit), (1e3, "KB"))
    return f"{count / unit:.3g} {name}"


def _barrier() -> None:
    """Waits for the other processes, if there are any."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
