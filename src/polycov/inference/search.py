"""The nearest images of an embedding that may be larger than memory."""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from polycov.data.anywhere import Anywhere, Item, item_name, iterate_items
from polycov.data.images import Samples
from polycov.data.loading import load_batches
from polycov.errors import PolycovError
from polycov.inference.embedder import Embedder, EmbedOptions, make_embedder
from polycov.inference.embeddings import Embeddings
from polycov.inference.found import Found, Hit, SearchResult
from polycov.inference.gallery import Gallery
from polycov.inference.nearest import Neighbours, exact_nearest, indexed_nearest
from polycov.inference.search_index import SearchIndex
from polycov.inference.similarity import unit_rows
from polycov.models.model_folder import ModelFolder
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device

INDEX_FROM = 1_000_000  # images; below, all features are compared
BATCH = 16
How = Literal["auto", "exact", "ivfpq"]


def search(
    embeddings: str | Path | Embeddings,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 10,
    index: How = "auto",
    model: str | Path | None = None,
    device: str = "auto",
    progress: Progress = SILENT,
) -> SearchResult:
    """Finds the images of an embedding that are most similar to others, by the cosine of the angle between features.

    The images are embedded by the model or method that made the embedding. One that is in the embedding finds itself.

    Args:
        embeddings: folder that `embed` wrote, or what it returned.
        images: images to search for, from any source that `embed` reads.
        top: how many to find for each.
        index: "exact" compares all features, one shard at a time in memory; "ivfpq" keeps an index beside them, for
            which faiss is needed, and computes the cosines of its candidates; "auto" does so from a million images.
        model: the run that made the embedding, if it has moved.
        device: device to compute on.
        progress: receives what is done.

    Raises:
        PolycovError: if the embedding is not complete, its model is gone or has changed, or an image cannot be read.
        MissingDependencyError: if faiss is asked for and not installed.
    """
    if top < 1:
        raise PolycovError(f"Expected top to be at least 1, got {top}.")
    gallery = Gallery(embeddings.folder if isinstance(embeddings, Embeddings) else embeddings)
    items = list(iterate_items([images] if isinstance(images, str | Path) else images))
    if not items:
        raise PolycovError("Expected images to search for.")
    queries = unit_rows(_embed(items, _embedder(gallery, model, device), device))
    exact = index == "exact" or (index == "auto" and (len(gallery) < INDEX_FROM or find_spec("faiss") is None))
    if exact:
        nearest = exact_nearest(queries, gallery.blocks(), top, progress, gallery.shard_count)
    else:
        nearest = indexed_nearest(queries, gallery, SearchIndex(gallery).prepare(progress), top)
    found = _named(gallery, list(map(item_name, items)), nearest)
    return SearchResult(found, exact, gallery.folder.path, tuple(items))


def _embedder(gallery: Gallery, model: str | Path | None, device: str) -> Embedder:
    """What made the embedding, if it is still the same.

    Raises:
        PolycovError: otherwise.
    """
    manifest, folder = gallery.manifest, str(gallery.folder.path)
    maker = manifest.maker
    source = maker.source if model is None else str(model)
    if (model is not None or Path(source).is_absolute()) and not ModelFolder(source).config.is_file():
        raise PolycovError(
            f"The embedding {folder!r} was made by the model {source!r}, which is gone. Say where it is with --model, "
            "or embed the images again."
        )
    options = EmbedOptions(source, dim=maker.dim, seed=maker.seed, images=maker.images, network=maker.network)
    embedder = make_embedder(options, choose_device(device))
    preprocessing = json.loads(json.dumps(embedder.preprocessing.identity()))
    if (embedder.digest, preprocessing) != (manifest.model, manifest.preprocessing):
        raise PolycovError(
            f"{source!r} is not the model that made the embedding {folder!r}: its weights or preprocessing differ. "
            "Embed the images again, or give the right one with --model."
        )
    return embedder


@torch.inference_mode()
def _embed(items: list[Item], embedder: Embedder, device: str) -> Tensor:
    """The features of images, (Q, D)."""
    batches = [range(i, min(i + BATCH, len(items))) for i in range(0, len(items), BATCH)]
    samples, chosen = Samples(Anywhere(), items, [0] * len(items)), choose_device(device)
    loading = load_batches(samples, embedder.preprocessing, batches)
    features = [embedder(images.to(chosen, memory_format=torch.channels_last)).cpu() for images, _, _ in loading]
    return torch.cat(features).float().clone()


def _named(gallery: Gallery, queries: list[str], nearest: list[Neighbours]) -> tuple[Found, ...]:
    rows = gallery.rows(number for neighbours in nearest for number, _ in neighbours)
    return tuple(
        Found(query, tuple(Hit(rows[number][0], cosine) for number, cosine in neighbours))
        for query, neighbours in zip(queries, nearest, strict=True)
    )
