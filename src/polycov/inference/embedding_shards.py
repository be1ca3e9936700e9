"""Shards of embeddings: names and features of some images in a Parquet or npz file, with checksums."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polycov.data.quantize import dequantize
from polycov.errors import MissingDependencyError, PolycovError, require_module
from polycov.system.files import open_to_read
from polycov.system.text import valid_utf8

ShardFormat = Literal["parquet", "npz"]
Array = np.ndarray[Any, Any]
_EMBEDDING = b"polycov.embedding"  # the key of the identity in the metadata of a Parquet file


@dataclass(frozen=True)
class Shard:
    """Features of consecutive images.

    Attributes:
        names: names of the images.
        features: (images, D), as stored.
        scales: (images,) for int8, by which features are multiplied; None otherwise.
        embedding: identity of the embedding that it belongs to; None in files of older versions.
    """

    names: list[str]
    features: Array
    scales: Array | None = None
    embedding: str | None = None

    def problem(self, embedding: str, names: list[str], dimensions: int, dtype: str) -> str:
        """Returns how it differs from a shard of this embedding, images and features; empty if it does not."""
        images = len(self.names)
        if self.embedding not in (embedding, None):
            return "it is of another embedding"
        if self.names != [valid_utf8(name) for name in names] and self.names != names:
            return "other images"
        if self.features.shape != (images, dimensions) or self.features.dtype != dtype:
            return f"features of shape {self.features.shape} and {self.features.dtype}"
        if (self.scales is not None) != (dtype == "int8"):
            return "scales of another dtype"
        return "" if self.scales is None or self.scales.shape == (images,) else "not one scale per image"

    def values(self) -> Array:
        """Returns the features in float32, (images, D)."""
        scales = None if self.scales is None else torch.from_numpy(np.array(self.scales))
        result: Array = dequantize(torch.from_numpy(np.array(self.features)), scales).numpy()
        return result


def fill_shard(path: Path, kind: ShardFormat, shard: Shard) -> None:
    """Writes a shard to a file."""
    if kind == "npz":
        arrays: dict[str, Any] = {"names": np.array(shard.names, dtype=str), "features": shard.features}
        if shard.scales is not None:
            arrays["scales"] = shard.scales
        if shard.embedding is not None:
            arrays["embedding"] = np.array(shard.embedding)
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return
    pa, pq = _pyarrow()
    column = pa.FixedSizeListArray.from_arrays(pa.array(shard.features.reshape(-1)), shard.features.shape[1])
    names = [valid_utf8(name) for name in shard.names]  # Parquet holds no others
    table = {"name": pa.array(names, pa.string()), "feature": column}
    if shard.scales is not None:
        table["scale"] = pa.array(shard.scales)
    notes = {} if shard.embedding is None else {_EMBEDDING: shard.embedding.encode()}
    pq.write_table(pa.table(table, metadata=notes), path, write_page_checksum=True, use_dictionary=False)


def read_shard(path: Path) -> Shard:
    """Reads a shard, and checks it against its checksums.

    Raises:
        PolycovError: if it is damaged.
    """
    try:
        if path.suffix == ".npz":
            with open_to_read(path) as file, np.load(file, allow_pickle=False) as arrays:
                scales = arrays["scales"] if "scales" in arrays.files else None
                embedding = str(arrays["embedding"]) if "embedding" in arrays.files else None
                return Shard(arrays["names"].tolist(), arrays["features"], scales, embedding)
        if not path.is_file():
            raise ValueError("it is not a file")
        _, pq = _pyarrow()
        table = pq.read_table(path, page_checksum_verification=True)
        column = table["feature"].combine_chunks()
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), column.type.list_size)
        scales = table["scale"].to_numpy() if "scale" in table.column_names else None
        note = (table.schema.metadata or {}).get(_EMBEDDING)
        return Shard(table["name"].to_pylist(), values, scales, None if note is None else note.decode())
    except MissingDependencyError:
        raise
    except Exception as error:  # a damaged file makes its reader raise many kinds
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
    sentence = "Parquet needs pyarrow. Install it with: pip install 'polycov[data]', or use --format npz."
    return require_module("pyarrow", sentence), require_module("pyarrow.parquet", sentence)
