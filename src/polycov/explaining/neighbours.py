"""The training images of a run that are most similar to an image, and which regions make them so."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from polycov.data.broken import find_broken
from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData
from polycov.data.read import read_data
from polycov.explaining.explain import map_size, unprepared
from polycov.explaining.regions import RegionGrid
from polycov.explaining.shares import region_shares
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import digest
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.training.batches import BatchSource, FeatureBatches, ImageBatches
from polycov.training.config import Config
from polycov.training.features import extract_features

BATCH_SIZE = 32
REGIONS = 10  # at most, per side
Region = tuple[int, int]  # row and column


@dataclass(frozen=True)
class Neighbour:
    """A training image that is similar to an image.

    Attributes:
        name: of the training image.
        label: its class.
        image: as the network sees it, (3, H, W), values from 0 to 1.
        pairs: what each region of the image (rows) and each region of the training image (columns) contribute to the
            similarity together, (regions, regions).
        grid: of the regions, rows and columns.
    """

    name: str
    label: str
    image: Tensor
    pairs: Tensor
    grid: tuple[int, int]

    @property
    def similarity(self) -> float:
        """The cosine of the angle between the pooled features."""
        return float(self.pairs.double().sum())

    @property
    def regions(self) -> Tensor:
        """What each region of the image contributes to the similarity, (rows, columns)."""
        return self.pairs.sum(1).reshape(self.grid)

    @property
    def own_regions(self) -> Tensor:
        """What each region of the training image contributes to the similarity, (rows, columns)."""
        return self.pairs.sum(0).reshape(self.grid)

    @property
    def strongest(self) -> tuple[Region, Region]:
        """The region of the image and that of the training image that contribute most together."""
        one, other = divmod(int(self.pairs.argmax()), self.pairs.shape[1])
        return divmod(one, self.grid[1]), divmod(other, self.grid[1])


class TrainingImages:
    """The training images of a run, with their pooled features on disk.

    Args:
        model: of the run.
        data: of the run.
        store: of the features of ``data["train"]``, each (1, D) and of length 1.
    """

    def __init__(self, model: Model, data: ImageData, store: FeatureStore) -> None:
        self.model, self.data, self.store = model, data, store

    @classmethod
    def open(
        cls,
        model: Model,
        config: Config,
        cache: Path | None = None,
        *,
        workers: int = 2,
        progress: Progress = SILENT,
    ) -> "TrainingImages":
        """Reads the training images of a run, and computes their features or takes them from the cache.

        The cache is keyed by the model, the images and their preprocessing: a change of any leads to other features. An
        interrupted computation resumes.

        Args:
            model: of a finished run, on the device to compute on.
            config: of the run.
            cache: folder of the cache; default: POLYCOV_CACHE, or the user's cache folder.
            workers: processes that read images.
            progress: receives the number of images done.

        Raises:
            PolycovError: if the images are not there any more.
        """
        cache, options = cache_folder(cache), config.split
        data = read_data(
            config.data,
            val_fraction=options.val_fraction,
            test_fraction=options.test_fraction,
            split_seed=options.split_seed,
            val_seed=options.val_seed,
        )
        data = data.without(set(find_broken(data, cache, workers=max(workers, 1), progress=progress)))
        frozen = config.training.freeze or config.training.probe
        return cls.prepare(model, data, cache, frozen=frozen, workers=workers, progress=progress)

    @classmethod
    def prepare(
        cls,
        model: Model,
        data: ImageData,
        cache: Path,
        *,
        frozen: bool,
        workers: int = 2,
        progress: Progress = SILENT,
    ) -> "TrainingImages":
        """As `open`, for data that was read already.

        Args:
            model: to compute with.
            data: whose training images.
            cache: folder of the cache.
            frozen: whether the local features of all images are in the cache, from training on a frozen backbone.
            workers: processes that read images.
            progress: receives the number of images done.
        """
        train = data["train"]
        parts = nn.ModuleList([model.backbone, model.reduction, model.pool])
        identity = {
            "what": "pooled features of length 1",
            "model": model.describe()["model"],
            "weights": digest(parts.state_dict()),
            "images": data.fingerprint(stamps=True),
            "preprocessing": model.preprocessing.identity(),
        }
        names = [train.name(i) for i in range(len(train))]
        store = FeatureStore.open(cache, identity, names, (1, model.pool.out_features), progress=progress)
        missing = store.missing()
        if missing:
            source: BatchSource = ImageBatches(data, model.preprocessing, workers)
            if frozen:
                local = extract_features(
                    model.backbone,
                    data,
                    model.preprocessing,
                    cache,
                    workers=workers,
                    device=model.device,
                    progress=progress,
                )
                source = FeatureBatches(data, local)
            _fill(store, model, source, missing, frozen, progress)
        return cls(model, data, store)

    @torch.no_grad()
    def nearest(self, images: Tensor, count: int = 4, *, progress: Progress = SILENT) -> list[list[Neighbour]]:
        """Returns the training images with the largest cosine similarity to each image, the most similar first.

        Args:
            images: prepared, (B, 3, H, W).
            count: training images per image.
            progress: receives the number of images done.
        """
        found: list[list[Neighbour]] = []
        with evaluation_mode(self.model), progress.task("similar training images", len(images)) as task:
            parts = [self._parts(image) for image in images]
            units = torch.stack([own.shares.sum(0) for own in parts])
            similarities = torch.cat([units @ x.flatten(1).mT for x in self.store.batches(self.data["train"])], 1)
            best = similarities.topk(min(count, similarities.shape[1])).indices.tolist()
            for own, chosen in zip(parts, best, strict=True):
                found.append([self._neighbour(own, i) for i in chosen])
                task.advance()
        return found

    def _neighbour(self, parts: "_Parts", index: int) -> Neighbour:
        train = self.data["train"]
        image = self.model.preprocessing(train.image(index))
        return Neighbour(
            name=train.name(index),
            label=self.data.classes[train.labels[index]],
            image=unprepared(self.model, image),
            pairs=parts.shares @ self._parts(image).shares.mT,
            grid=(parts.grid.rows, parts.grid.columns),
        )

    def _parts(self, image: Tensor) -> "_Parts":
        local = self.model.local_features(image[None].to(self.model.device))
        grid = RegionGrid(*map_size(local), REGIONS)
        shares = region_shares(self.model.pool, local, grid).float().cpu()
        return _Parts(shares / torch.linalg.vector_norm(shares.sum(0)).clamp(min=1e-30), grid)


@dataclass(frozen=True)
class _Parts:
    """The shares of the regions of an image in its feature of length 1, (regions, D)."""

    shares: Tensor
    grid: RegionGrid


@torch.inference_mode()
def _fill(
    store: FeatureStore, model: Model, source: BatchSource, missing: Sequence[int], frozen: bool, progress: Progress
) -> None:
    """Computes the features that are missing, from local features or from images."""
    batches = [missing[i : i + BATCH_SIZE] for i in range(0, len(missing), BATCH_SIZE)]
    with progress.task("features of training images", len(missing)) as task, evaluation_mode(model):
        for x, _, indices in source.batches("train", batches):
            x = x.to(model.device)
            features = model.pool(model.reduce(x)) if frozen else model.embed(x)
            store.write(indices.tolist(), nn.functional.normalize(features.float())[:, None])
            task.advance(len(indices))
        store.flush()
