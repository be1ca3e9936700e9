"""A folder of embeddings: shards of names and features, the list of images, and what it was made from."""

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polycov.data.anywhere import Item, item_from_json, item_name, last_modified
from polycov.data.quantize import FeatureDtype
from polycov.errors import PolycovError
from polycov.inference.embedding_shards import Shard, ShardFormat, fill_shard, read_shard
from polycov.progress import Progress
from polycov.system.files import is_there, open_to_read, write_file
from polycov.system.formats import require_format
from polycov.system.json_files import read_json_lines, read_object, write_json, write_json_lines
from polycov.system.locks import only_writer
from polycov.system.structure import Structured, structure, to_plain
from polycov.training.config import ImageOptions, NetworkOptions

FORMAT = 3


@dataclass(frozen=True)
class Maker(Structured):
    """What turned images into features, so that others can be compared with them.

    Attributes:
        source: path of the run or model; or the method or spec.
        dim: with a method, as it was given.
        seed: with a method.
        images: with a method.
        network: with a method.
    """

    source: str
    dim: int | None
    seed: int
    images: ImageOptions
    network: NetworkOptions


@dataclass(frozen=True)
class Manifest(Structured):
    """What an embedding was made from.

    Attributes:
        format_version: of the folder.
        model: digest of all weights that the features depend on.
        spec: of the pool.
        dimensions: of a feature.
        preprocessing: of the images.
        paths: of images and folders.
        working_folder: folder that relative paths start from.
        shard_size: images per shard.
        format: of the shards.
        dtype: of the features.
        images: how many are listed.
        maker: what made the features; it may have moved since.
    """

    format_version: int
    model: str
    spec: str
    dimensions: int
    preprocessing: dict[str, Any]
    paths: list[str]
    working_folder: str | None
    shard_size: int
    format: ShardFormat
    dtype: FeatureDtype
    images: int
    maker: Maker

    @property
    def shards(self) -> range:
        """The numbers of the shards."""
        return range(-(-self.images // self.shard_size))


@dataclass(frozen=True)
class Skipped(Structured):
    """An image that could not be read."""

    image: str
    reason: str


class EmbeddingFolder:
    """The files of an embedding. The images are listed once; each stretch of the list becomes one shard, which carries
    the identity of the embedding.

    Only one process writes to it, no matter which ones compute the features. A shard is written in one step, so that
    memory does not grow with the number of images and an interrupted run resumes.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._manifest = self.path / "_embedding.json"
        self._images = self.path / "_images.jsonl"

    def writing(self) -> AbstractContextManager[None]:
        """Makes this process the only one that writes to the folder, which is created if it is missing.

        Raises:
            PolycovError: if another process does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return only_writer(self.path / "_writing.lock", self.path)

    def prepare(self, identity: dict[str, Any], maker: Maker, images: Iterable[Item]) -> bool:
        """Lists the images, once, or checks that the folder holds the same embedding.

        Args:
            identity: what the features depend on.
            maker: what makes them.
            images: where they are, read only if they are not listed yet.

        Returns:
            Whether they were listed just now.

        Raises:
            PolycovError: if the folder holds another embedding, or there are no images.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        wanted = {"format_version": FORMAT, **json.loads(json.dumps(identity))}
        new = not is_there(self._manifest)
        if new:
            count = self._list_images(images)
            if not count:
                raise PolycovError("There are no images to embed.")
            write_json(self._manifest, wanted | {"images": count, "maker": to_plain(maker)})
        self._read_manifest()
        before = read_object(self._manifest)
        changed = [key for key in wanted if before.get(key) != wanted[key]]
        if changed:
            key = changed[0]
            raise PolycovError(
                f"{str(self.path)!r} holds an embedding with another {key}: {before.get(key)!r}, not "
                f"{wanted[key]!r}. Choose another --out."
            )
        return new

    def _list_images(self, images: Iterable[Item]) -> int:
        count = 0

        def fill(temporary: Path) -> None:
            nonlocal count
            with temporary.open("w", encoding="utf-8") as file:
                for image in images:
                    file.write(json.dumps(image) + "\n")
                    count += 1

        write_file(self._images, fill)
        return count

    def _read_manifest(self) -> Manifest:
        """What the folder was made from.

        Raises:
            PolycovError: if the folder is not an embedding, or is damaged.
        """
        values = read_object(self._manifest)
        require_format(
            values.get("format_version", 1), FORMAT, f"The embedding {str(self._manifest)!r}", "Embed again."
        )
        manifest = structure(Manifest, values, repr(str(self._manifest)))
        if not self._images.is_file():
            raise PolycovError(f"The image list {str(self._images)!r} is missing. Choose another --out.")
        with open_to_read(self._images) as lines:
            listed = sum(1 for _ in lines)
        if manifest.images != listed or manifest.shard_size < 1:
            raise PolycovError(
                f"The image list in {str(self._images)!r} is damaged: {listed} images, {manifest.images} expected. "
                "Choose another --out."
            )
        return manifest

    @property
    def manifest(self) -> Manifest:
        """What the embedding was made from: model, spec, dimensions, format, shard size, number of images."""
        return self._read_manifest()

    @cached_property
    def _identity(self) -> str:
        """What tells this embedding from every other: a digest of all that its features depend on."""
        values = read_object(self._manifest)
        named = {key: values[key] for key in values if key not in ("images", "maker")}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:32]

    def image_lists(self, shard_size: int) -> Iterator[list[Item]]:
        """Yields where the images of one shard after another are.

        Raises:
            PolycovError: if the list is damaged.
        """
        with open_to_read(self._images) as lines:
            while some := list(itertools.islice(lines, shard_size)):
                try:  # of their escapes, those that stand for bytes of a name
                    items = [item_from_json(json.loads(line)) for line in some]
                except (ValueError, RecursionError) as error:
                    raise PolycovError(f"The image list {str(self._images)!r} is damaged: {error}.") from error
                yield items

    def _shard(self, index: int, kind: str) -> Path:
        return self.path / f"part-{index:06d}.{kind}"

    def _skipped(self, index: int) -> Path:
        return self.path / f"_skipped-{index:06d}.jsonl"

    def check_shards(self, progress: Progress) -> None:
        """Removes shards that are damaged or of another embedding, and names them; they are made again."""
        manifest = self._read_manifest()
        for index, items in enumerate(self.image_lists(manifest.shard_size)):
            path = self._shard(index, manifest.format)
            problem = self._problem(index, items, manifest) if is_there(path) else ""
            if problem:
                progress.message(f"{str(path)!r} is made again: {problem}")
                path.unlink(missing_ok=True)
        self._remove_surplus(manifest, progress)

    def _problem(self, index: int, items: list[Item], manifest: Manifest) -> str:
        """What is wrong with a shard; "" if nothing is."""
        try:
            skipped = {row.image for row in self._skipped_in(self._skipped(index))}
            names = [name for name in map(item_name, items) if name not in skipped]
            shard = read_shard(self._shard(index, manifest.format))
            problem = shard.problem(self._identity, names, manifest.dimensions, manifest.dtype)
            return problem or self._newer_image(index, items, manifest)
        except PolycovError as error:
            return str(error)

    def _newer_image(self, index: int, items: list[Item], manifest: Manifest) -> str:
        """An image that was modified after its shard was written; "" if there is none. A time to come is no sign."""
        written, now = self._shard(index, manifest.format).stat().st_mtime, time.time()
        newer = (item for item in items if written < last_modified(item) <= now)
        return next((f"{item_name(item)!r} has changed since" for item in newer), "")

    def _remove_surplus(self, manifest: Manifest, progress: Progress) -> None:
        """Removes shards of another embedding beside those of this one: who reads the folder would read them too."""
        expected = {self._shard(index, manifest.format) for index in manifest.shards}
        for path in sorted(set(self.path.glob("part-??????.*")) - expected):
            with suppress(PolycovError):  # whatever it is, polycov did not write it
                if read_shard(path).embedding not in (self._identity, None):
                    progress.message(f"{str(path)!r} is removed: it is of another embedding")
                    path.unlink()

    def has_shard(self, index: int, kind: ShardFormat) -> bool:
        """Whether a shard is complete."""
        return self._shard(index, kind).is_file()

    def write_shard(self, index: int, kind: ShardFormat, shard: Shard, skipped: dict[str, str]) -> None:
        """Writes a shard; the images skipped in it are recorded before, so that no kill can lose them."""
        if skipped:
            rows = [{"image": name, "reason": reason} for name, reason in skipped.items()]
            write_json_lines(self._skipped(index), rows)
        else:
            self._skipped(index).unlink(missing_ok=True)
        own = replace(shard, embedding=self._identity)
        write_file(self._shard(index, kind), lambda temporary: fill_shard(temporary, kind, own))

    def skipped(self) -> dict[str, str]:
        """Returns the images that could not be read, with the reasons."""
        paths = (self._skipped(index) for index in self._read_manifest().shards)
        rows = (row for path in paths for row in self._skipped_in(path))
        return {row.image: row.reason for row in rows}

    @staticmethod
    def _skipped_in(path: Path) -> list["Skipped"]:
        return [structure(Skipped, row, repr(str(path))) for row in read_json_lines(path)]

    def shard_paths(self) -> list[Path]:
        """Returns the files of all shards in order.

        Raises:
            PolycovError: if some are missing.
        """
        manifest = self._read_manifest()
        paths = [self._shard(index, manifest.format) for index in manifest.shards]
        done = sum(path.is_file() for path in paths)
        if done < len(paths):
            raise PolycovError(
                f"The embedding {str(self.path)!r} has {done} of {len(paths)} shards: run the same embed command again."
            )
        return paths

    def shards(self) -> Iterator[Shard]:
        """Yields the shards in order, one at a time in memory."""
        manifest = self._read_manifest()
        for path in (self._shard(index, manifest.format) for index in manifest.shards):
            if is_there(path):
                yield read_shard(path)
