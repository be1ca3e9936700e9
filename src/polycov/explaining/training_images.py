"""The training images of a run, and which of them are most similar to an image in the pooled feature."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from polycov.data.broken import find_broken
from polycov.data.feature_store import FeatureStore
from polycov.data.images import ImageData
from polycov.errors import PolycovError
from polycov.explaining.explain import unprepared
from polycov.explaining.neighbour import Neighbour, Shares
from polycov.explaining.regions import RegionGrid, grid_of
from polycov.explaining.shares import region_shares
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import digest
from polycov.progress import SILENT, Progress
from polycov.system.files import cache_folder
from polycov.training.assembly import read_split
from polycov.training.batches import BatchSource, FeatureBatches, ImageBatches
from polycov.training.config import Config
from polycov.training.features import extract_features, stored_channels
from polycov.training.run_folder import RunFolder

BATCH_SIZE = 32
LIMIT = 10_000
REGIONS = 10  # at most, per side


class TrainingImages:
    """The training images of a run, with their pooled features on disk.

    Args:
        model: of the run.
        data: of the run; its training images are those to look among.
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
        limit: int = LIMIT,
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
            limit: how many images at most, spread over the classes.
            workers: processes that read images.
            progress: receives messages and the number of images done.

        Raises:
            PolycovError: if the images are not there any more.
        """
        cache, data = cache_folder(cache), read_split(config.data, config.split)
        data = data.without(set(find_broken(data, cache, workers=max(workers, 1), progress=progress)))
        frozen = config.training.freeze or config.training.probe
        return cls.prepare(
            model,
            data,
            cache,
            frozen=frozen,
            store_channels=config.pooling.store_channels,
            limit=limit,
            workers=workers,
            progress=progress,
        )

    @classmethod
    def prepare(
        cls,
        model: Model,
        data: ImageData,
        cache: Path,
        *,
        frozen: bool,
        store_channels: int | None = None,
        limit: int = LIMIT,
        workers: int = 2,
        progress: Progress = SILENT,
    ) -> "TrainingImages":
        """As `open`, for data that was read already.

        Args:
            model: to compute with.
            data: whose training images.
            cache: folder of the cache.
            frozen: whether the local features of all images are in the cache, from training on a frozen backbone.
            store_channels: how many of their principal components, as in training.
            limit: how many images at most, spread over the classes.
            workers: processes that read images.
            progress: receives messages and the number of images done.
        """
        chosen = _spread(data, limit, progress)
        train = chosen["train"]
        parts = nn.ModuleList([model.backbone, model.reduction, model.pool])
        identity = {
            "what": "pooled features of length 1",
            "model": model.describe()["model"],
            "weights": digest(parts.state_dict()),
            "images": chosen.fingerprint(stamps=True),
            "preprocessing": model.preprocessing.identity(),
        }
        names = [train.name(i) for i in range(len(train))]
        store = FeatureStore.open(cache, identity, names, (1, model.pool.out_features), progress=progress)
        missing = store.missing()
        if missing:
            source: BatchSource = ImageBatches(chosen, model.preprocessing, workers)
            if frozen:
                local = extract_features(
                    model.backbone,
                    data,
                    model.preprocessing,
                    cache,
                    channels=stored_channels(model, store_channels),
                    workers=workers,
                    device=model.device,
                    progress=progress,
                )
                source = FeatureBatches(chosen, local)
            _fill(store, model, source, missing, frozen, progress)
        return cls(model, chosen, store)

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
            features = [self.model.embed(part.to(self.model.device)) for part in images.split(BATCH_SIZE)]
            units = nn.functional.normalize(torch.cat(features).float().cpu())
            similarities = torch.cat([units @ x.flatten(1).mT for x in self.store.batches(self.data["train"])], 1)
            best = similarities.topk(min(count, similarities.shape[1]))
            for image, indices, values in zip(images, best.indices.tolist(), best.values.tolist(), strict=True):
                shares = functools.cache(functools.partial(self._shares, image))  # once for all its neighbours
                found.append([self._neighbour(shares, i, value) for i, value in zip(indices, values, strict=True)])
                task.advance()
        return found

    def _neighbour(self, shares: Callable[[], Shares], index: int, similarity: float) -> Neighbour:
        train = self.data["train"]
        image = self.model.preprocessing(train.image(index, least=self.model.preprocessing.decoded_side))
        label, shown = self.data.classes[train.labels[index]], unprepared(self.model, image)
        return Neighbour(train.name(index), label, shown, similarity, (shares, functools.partial(self._shares, image)))

    @torch.no_grad()
    def _shares(self, image: Tensor) -> Shares:
        with evaluation_mode(self.model):
            local = self.model.local_features(image[None].to(self.model.device))
            grid = RegionGrid(*grid_of(local), REGIONS)
            vectors = region_shares(self.model.pool, local, grid).float().cpu()
        length = torch.linalg.vector_norm(vectors.sum(0)).clamp(min=1e-30)
        return Shares(vectors / length, (grid.rows, grid.columns))


def training_images_of(run: str | Path, model: Model, progress: Progress = SILENT) -> TrainingImages | None:
    """Returns the training images of a run; None, with a message, for another model and if the images are gone.

    Args:
        run: the folder of the run.
        model: of the run, on the device to compute on.
        progress: receives messages and the number of images done.
    """
    try:
        return TrainingImages.open(model, RunFolder(run).read_config(), progress=progress)
    except (PolycovError, OSError) as error:
        progress.message(f"no similar training images for {str(run)!r}: {error}")
        return None


def _spread(data: ImageData, limit: int, progress: Progress) -> ImageData:
    """The data with at most ``limit`` training images, spread over the classes, and nothing else."""
    train = data["train"]
    if len(train) > limit:
        progress.message(f"note: similar images are sought among {limit} of {len(train)} training images")
        order = sorted(range(len(train)), key=lambda i: (train.labels[i], train.name(i)))
        train = train.select(order[i * len(order) // limit] for i in range(limit))
    return replace(data, splits={"train": train})


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
