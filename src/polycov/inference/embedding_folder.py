"""A folder of embeddings: shards of names and features, the list of images, and what it was made from."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polycov.data.quantize import dequantize
from polycov.errors import MissingDependencyError, PolycovError
from polycov.system.files import write_file
from polycov.system.json_files import read_json, read_json_lines, write_json, write_json_lines
from polycov.system.locks import try_lock, wait_for_lock

ShardFormat = Literal["parquet", "npz"]
Array = np.ndarray[Any, Any]
FORMAT = 2


@dataclass(frozen=True)
class Shard:
    """Features of consecutive images.

    Attributes:
        names: names of the images.
        features: (images, D), as stored.
        scales: (images,) for int8, by which features are multiplied; None otherwise.
    """

    names: list[str]
    features: Array
    scales: Array | None = None

    def values(self) -> Array:
        """Returns the features in float32, (images, D)."""
        scales = None if self.scales is None else torch.from_numpy(np.array(self.scales))
        result: Array = dequantize(torch.from_numpy(np.array(self.features)), scales).numpy()
        return result


class EmbeddingFolder:
    """The files of an embedding. The images are listed once; each stretch of the list becomes one shard.

    A shard is written in one step by a process that holds its lock, so that memory does not grow with the number of
    images, several processes can share the work, and an interrupted run resumes.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._manifest = self.path / "_embedding.json"
        self._images = self.path / "_images.jsonl"

    def prepare(self, identity: dict[str, Any], images: Iterable[str]) -> None:
        """Lists the images, once, or checks that the folder holds the same embedding.

        Args:
            identity: what the features depend on.
            images: their files, read only if they are not listed yet.

        Raises:
            PolycovError: if the folder holds another embedding, or there are no images.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        wanted = {"format_version": FORMAT, **json.loads(json.dumps(identity))}
        with wait_for_lock(self.path / "_list.lock"):
            if not self._manifest.is_file():
                count = self._list_images(images)
                if not count:
                    raise PolycovError("There are no images to embed.")
                write_json(self._manifest, wanted | {"images": count})
            before = self._read_manifest()
            changed = [key for key in wanted if before.get(key) != wanted[key]]
            if changed:
                key = changed[0]
                raise PolycovError(
                    f"{str(self.path)!r} holds an embedding with another {key}: {before.get(key)!r}, not "
                    f"{wanted[key]!r}. Choose another --out."
                )

    def _list_images(self, images: Iterable[str]) -> int:
        count = 0

        def fill(temporary: Path) -> None:
            nonlocal count
            with temporary.open("w", encoding="utf-8") as file:
                for image in images:
                    file.write(json.dumps(image) + "\n")
                    count += 1

        write_file(self._images, fill)
        return count

    def _read_manifest(self) -> dict[str, Any]:
        """What the folder was made from.

        Raises:
            PolycovError: if the folder is no embedding, or damaged.
        """
        manifest = read_json(self._manifest)
        version = manifest.get("format_version", 1) if isinstance(manifest, dict) else None
        if version != FORMAT:
            raise PolycovError(f"The embedding {str(self.path)!r} has format {version!r}; expected {FORMAT}.")
        if not self._images.is_file():
            raise PolycovError(f"The image list of {str(self.path)!r} is missing. Choose another --out.")
        with self._images.open(encoding="utf-8") as lines:
            listed = sum(1 for _ in lines)
        if manifest.get("images") != listed:
            raise PolycovError(f"The image list in {str(self.path)!r} is damaged. Choose another --out.")
        return manifest

    @property
    def manifest(self) -> dict[str, Any]:
        """What the embedding was made from: model, spec, dimensions, format, shard size, number of images."""
        return self._read_manifest()

    def image_lists(self, shard_size: int) -> Iterator[list[str]]:
        """Yields the images of one shard after another."""
        with self._images.open(encoding="utf-8") as lines:
            while names := [json.loads(line) for line in itertools.islice(lines, shard_size)]:
                yield names

    def _shard(self, index: int, kind: str) -> Path:
        return self.path / f"part-{index:06d}.{kind}"

    def _skipped(self, index: int) -> Path:
        return self.path / f"_skipped-{index:06d}.jsonl"

    def has_shard(self, index: int, kind: ShardFormat) -> bool:
        """Whether a shard is complete."""
        return self._shard(index, kind).is_file()

    def lock_shard(self, index: int) -> AbstractContextManager[bool]:
        """Tries to lock a shard; yields whether it was free."""
        return try_lock(self.path / f"_part-{index:06d}.lock")

    def write_shard(self, index: int, kind: ShardFormat, shard: Shard, skipped: dict[str, str]) -> None:
        """Writes a shard; the images skipped in it are recorded before, so that no kill can lose them."""
        if skipped:
            rows = [{"image": name, "reason": reason} for name, reason in skipped.items()]
            write_json_lines(self._skipped(index), rows)
        else:
            self._skipped(index).unlink(missing_ok=True)
        write_file(self._shard(index, kind), lambda temporary: _fill(temporary, kind, shard))

    def skipped(self) -> dict[str, str]:
        """Returns the images that could not be read, with the reasons."""
        rows = (row for path in sorted(self.path.glob("_skipped-*.jsonl")) for row in read_json_lines(path))
        return {row["image"]: row["reason"] for row in rows}

    def shards(self) -> Iterator[Shard]:
        """Yields the shards in order, one at a time in memory."""
        for path in sorted(self.path.glob("part-*")):
            yield _read(path)


def _fill(path: Path, kind: ShardFormat, shard: Shard) -> None:
    if kind == "npz":
        arrays: dict[str, Any] = {"names": np.array(shard.names, dtype=str), "features": shard.features}
        if shard.scales is not None:
            arrays["scales"] = shard.scales
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return
    pa, pq = _pyarrow()
    column = pa.FixedSizeListArray.from_arrays(pa.array(shard.features.reshape(-1)), shard.features.shape[1])
    texts = [os.fsencode(name).decode("utf-8", "replace") for name in shard.names]
    table = {"name": pa.array(texts, pa.string()), "feature": column}
    if shard.scales is not None:
        table["scale"] = pa.array(shard.scales)
    pq.write_table(pa.table(table), path)


def _read(path: Path) -> Shard:
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                scales = arrays["scales"] if "scales" in arrays.files else None
                return Shard(arrays["names"].tolist(), arrays["features"], scales)
        _, pq = _pyarrow()
        table = pq.read_table(path)
        column = table["feature"].combine_chunks()
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1)
        scales = table["scale"].to_numpy() if "scale" in table.column_names else None
        return Shard(table["name"].to_pylist(), values, scales)
    except MissingDependencyError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise PolycovError(f"Cannot read the shard {str(path)!r}: {error}") from error


def shard_format(asked: Literal["auto", "parquet", "npz"]) -> ShardFormat:
    """Returns the format of new shards: for "auto", Parquet if pyarrow is installed.

    Raises:
        MissingDependencyError: if Parquet is asked for and pyarrow is not installed.
    """
    if asked == "auto":
        return "npz" if find_spec("pyarrow") is None else "parquet"
    if asked == "parquet":
        _pyarrow()
    return asked


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Parquet needs pyarrow. Install it with: pip install 'polycov[data]', or use --format npz."
        ) from error
    return pyarrow, pyarrow.parquet
