"""Compact features of any number of images, in shards on disk."""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from polycov.data.addresses import is_url
from polycov.data.anywhere import item_name, iterate_items
from polycov.engines.engine import Engine
from polycov.errors import PolycovError
from polycov.inference.embed_work import EmbedImages, Part, ShardTask, join_parts
from polycov.inference.embedder import Embedder, EmbedOptions, make_embedder, resolved_source
from polycov.inference.embedding_folder import EmbeddingFolder, Maker
from polycov.inference.embedding_shards import ShardFormat, shard_format
from polycov.inference.embeddings import Embeddings
from polycov.models.backbones import load_plugin
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device
from polycov.training.config import replace_options


def embed(
    source: str | Path | EmbedOptions,
    paths: str | Path | Iterable[str | Path] = (),
    out: str | Path = "features",
    *,
    progress: Progress = SILENT,
    **options: Any,
) -> Embeddings:
    """Writes the compact features of images to disk; an interrupted call resumes.

    Args:
        source: a finished run, a saved model, a method or a spec; or all options.
        paths: images, tar and Parquet files of images, and folders of any of them; or their URLs, for fsspec.
        out: folder for the shards.
        progress: receives the number of images done.
        options: any option of `EmbedOptions` by its name, such as ``dim=512`` or ``dtype="int8"``.

    Raises:
        PolycovError: if there is no such run or method, an image cannot be read, or the folder holds something else.
    """
    if not isinstance(source, EmbedOptions):
        given = [paths] if isinstance(paths, str | Path) else paths
        source = EmbedOptions(str(source), tuple(map(str, given)), Path(out))
    chosen: EmbedOptions = replace_options(source, options)
    kind = _check(chosen)
    load_plugin(chosen.runtime.plugin)
    embedder = make_embedder(chosen, choose_device(chosen.runtime.device))
    folder = EmbeddingFolder(chosen.out)
    with folder.writing(), _resumable(folder.path):
        new = folder.prepare(_identity(chosen, kind, embedder), _maker(chosen), iterate_items(chosen.paths))
        if not new:
            _note_changes(folder, chosen, progress)
        folder.check_shards(progress)
        total = folder.manifest.images
        shards = _write_missing(folder, total, chosen, kind, embedder, progress)
        skipped = folder.skipped()
    return Embeddings(folder.path, total - len(skipped), embedder.pool.out_features, shards, skipped)


def _write_missing(
    folder: EmbeddingFolder,
    total: int,
    options: EmbedOptions,
    kind: ShardFormat,
    embedder: Embedder,
    progress: Progress,
) -> int:
    """Writes the shards that are not on disk; returns how many there are in all."""
    size = options.shard_size
    shards = -(-total // size)
    missing = {i for i in range(shards) if not folder.has_shard(i, kind)}
    if not missing:
        progress.message(f"already complete: {folder.path}")
        return shards
    tasks = (ShardTask(i, items) for i, items in enumerate(folder.image_lists(size)) if i in missing)
    counts = {i: min(size, total - i * size) for i in missing}
    parts: dict[int, list[Part]] = {}
    with Engine(options.engine) as engine, progress.task("embedding", total) as task:
        task.update(total - sum(counts.values()))
        for part in engine.run(EmbedImages(options, engine, total, embedder, progress), tasks):
            parts.setdefault(part.shard, []).append(part)
            task.advance(part.images)
            if sum(other.images for other in parts[part.shard]) == counts[part.shard]:
                folder.write_shard(part.shard, kind, *join_parts(parts.pop(part.shard)))
    return shards


def _note_changes(folder: EmbeddingFolder, options: EmbedOptions, progress: Progress) -> None:
    """Says if the images here are no longer those that were listed when the embedding was begun."""
    if any(is_url(str(path)) for path in options.paths):
        return  # listing a store again may take long
    listed = itertools.chain.from_iterable(folder.image_lists(options.shard_size))
    with suppress(OSError, PolycovError):  # images may be gone once they are embedded
        for before, now in itertools.zip_longest(listed, iterate_items(options.paths)):
            if before != now:
                name = item_name(before if now is None else now)
                progress.message(
                    f"note: the images have changed since they were listed, first at {name!r}; the embedding is of "
                    "those listed. Choose another --out for the images as they are now."
                )
                return


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Says how to resume after an interruption."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"Run the same command again to resume the embedding in {folder}.") from error


def _check(options: EmbedOptions) -> ShardFormat:
    """Returns the format of the shards, if the options make sense."""
    if not options.paths:
        raise PolycovError("Expected images, tar or Parquet files of images, or folders of them.")
    if options.out.suffix in (".parquet", ".npz", ".npy", ".csv"):
        raise PolycovError(f"--out is a folder of shards, got {str(options.out)!r}. Use --format for the file format.")
    for name in ("shard_size", "batch_size"):
        if getattr(options, name) < 1:
            raise PolycovError(f"Expected {name} to be at least 1, got {getattr(options, name)}.")
    options.runtime.check()
    options.engine.check()
    return shard_format(options.format)


def _identity(options: EmbedOptions, kind: ShardFormat, embedder: Embedder) -> dict[str, Any]:
    """What the features depend on."""
    absolute = all(is_url(str(path)) or Path(path).is_absolute() for path in options.paths)
    return {
        "model": embedder.digest,
        "spec": embedder.pool.spec,
        "dimensions": embedder.pool.out_features,
        "preprocessing": embedder.preprocessing.identity(),
        "paths": [str(path) for path in options.paths],
        "working_folder": None if absolute else os.getcwd(),
        "shard_size": options.shard_size,
        "format": kind,
        "dtype": options.dtype,
    }


def _maker(options: EmbedOptions) -> Maker:
    """What makes the features, with full paths."""
    weights = Path(options.network.weights)
    network = replace(options.network, weights=str(weights.resolve())) if weights.is_file() else options.network
    return Maker(resolved_source(options.source), options.dim, options.seed, options.images, network)
