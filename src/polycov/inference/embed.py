"""``polycov embed``: compact vectors of any number of pictures, in shards on disk.

The names of the pictures are listed once, in a file. Each stretch of the list becomes one shard, and each shard is
written in one step by a process that holds its lock. So memory does not grow with the number of pictures; any number
of processes that run the same command share the work; and the same command goes on after a kill.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from polycov.data.images import Files, Samples
from polycov.data.layouts import extensions
from polycov.data.loading import load
from polycov.data.quantize import Stored, store
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone, fixed_size
from polycov.models.model import Model
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.pooling.methods import list_methods
from polycov.progress import make_console, make_progress
from polycov.system.files import append_json_lines, read_json_lines, try_lock, wait_for_lock, read_json, write_file, write_json
from polycov.training.features import digest

Format = Literal["auto", "parquet", "npz"]


@dataclass
class Embed:
    """Turn pictures into compact vectors on disk: a folder of shards with names and features.

    Run the same command again to go on after a stop, and in several terminals or by a launcher to share the work.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|METHOD|SPEC")]
    """A finished run or a saved model; or a method or spec, for a pool on a backbone that was not trained further."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE…")]
    """Pictures, or folders of pictures."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("features")
    """Folder for the shards."""
    format: Format = "auto"
    """parquet (columns name and feature) or npz (arrays names and features); auto: parquet if pyarrow is there."""
    dtype: Stored = "float32"
    """Of the features on disk; int8 comes with a column or array of scales, by which a feature is multiplied."""
    shard: int = 1024
    """Pictures in a shard."""
    batch_size: int = 16
    """Pictures at a time."""
    workers: int = 2
    """Processes that prepare pictures."""
    broken: Literal["stop", "skip"] = "stop"
    """What to do about pictures that cannot be read; those skipped are listed in _broken.jsonl."""
    device: str = "cpu"
    """Where to compute."""
    backbone: str = OFFLINE_BACKBONE
    """With a method: a network of timm."""
    weights: str = "auto"
    """With a method: weights of the backbone, as for train."""
    stage: Literal["auto", "last"] | int = "auto"
    """With a method: stage of the backbone, as for train."""
    size: int | None = None
    """With a method: side of the pictures; by default 320, or the one a transformer is made for."""
    dim: int | None = None
    """With a method: dimensions of the feature, where they are free."""
    seed: int = 0
    """With a method: of the sketch."""


def run(options: Embed) -> None:
    """Writes the shards.

    Raises:
        PolycovError: if there is no such run or method, a picture cannot be read, or the folder holds something else.
    """
    kind = _format(options)
    if not options.images:
        raise PolycovError("Expected pictures, or folders of pictures.")
    if options.shard < 1 or options.batch_size < 1 or options.workers < 0:
        raise PolycovError("Expected shard and batch_size to be at least 1, and workers 0 or more.")
    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise PolycovError(f"The device {options.device!r} is not there: {str(error).splitlines()[0]}") from error
    console = make_console(quiet=int(os.environ.get("LOCAL_RANK", "0")) > 0)
    model, preprocessing = _model(options)
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    total = _prepare(folder, options, kind, model, preprocessing)
    shards = -(-total // options.shard)
    with make_progress(console) as bar:
        task = bar.add_task("pictures", total=total)
        while True:
            bar.update(task, completed=min(sum(_done(folder, kind, i) for i in range(shards)) * options.shard, total))
            if bar.tasks[0].completed >= total:
                break
            if not _pass(folder, options, kind, model, preprocessing, lambda n: bar.advance(task, n)):
                time.sleep(0.5)  # other processes have what is left
    unread = sum(1 for _ in read_json_lines(folder / "_broken.jsonl"))
    left_out = f", {unread} left out (_broken.jsonl)" if unread else ""
    console.print(
        f"{total} pictures{left_out}, {model.pool.out_features} dimensions, {shards} shards in {folder}", markup=False
    )


def _format(options: Embed) -> str:
    if options.out.suffix in (".parquet", ".npz", ".npy", ".csv"):
        raise PolycovError(f"--out is a folder of shards, got {str(options.out)!r}. Use --format for the kind of file.")
    there = find_spec("pyarrow") is not None
    if options.format == "parquet" and not there:
        raise PolycovError("Parquet needs pyarrow. Install it with: pip install pyarrow, or use --format npz.")
    return options.format if options.format != "auto" else "parquet" if there else "npz"


def _model(options: Embed) -> tuple[Model, Preprocessing]:
    """The model of a run; or a pool right on a backbone."""
    if (Path(options.what) / "config.json").is_file():
        if options.dim is not None or options.size is not None:
            raise PolycovError("A run has its own dimensions and size: leave out --dim and --size.")
        model = Model.from_pretrained(options.what)
        preprocessing = model.preprocessing
    elif options.what not in list_methods() and "|" not in options.what and Path(options.what).exists():
        raise PolycovError(f"{options.what!r} is not a run: it has no config.json.")
    else:
        stage = None if options.stage == "last" else options.stage
        size = options.size or fixed_size(options.backbone) or 320
        backbone = Backbone(options.backbone, weights=options.weights, stage=stage, size=size)
        model = Model(backbone, options.what, 1, 0, seed=options.seed, dim=options.dim)
        preprocessing = backbone.preprocessing()
    return model.to(options.device).eval(), preprocessing


def _prepare(folder: Path, options: Embed, kind: str, model: Model, preprocessing: Preprocessing) -> int:
    """Lists the pictures, once; returns how many there are.

    Raises:
        PolycovError: if the folder holds other features, or there are no pictures.
    """
    wanted = {
        "model": digest(model),
        "spec": model.pool.spec,
        "dimensions": model.pool.out_features,
        "preprocessing": preprocessing.key() | {"mean": list(preprocessing.mean), "std": list(preprocessing.std)},
        "images": [str(path) for path in options.images],
        "folder": None if all(path.is_absolute() for path in options.images) else os.getcwd(),
        "shard": options.shard,
        "format": kind,
        "dtype": options.dtype,
    }
    with wait_for_lock(folder / "_list.lock"):
        manifest = folder / "_embedding.json"
        if not manifest.is_file():
            count = 0

            def fill(beside: Path) -> None:
                nonlocal count
                with beside.open("w", encoding="utf-8") as file:
                    for path in _walk(options.images):
                        file.write(json.dumps(path) + "\n")
                        count += 1

            write_file(folder / "_images.jsonl", fill)
            if not count:
                raise PolycovError(f"There are no pictures in {', '.join(map(str, options.images))}.")
            write_json(manifest, wanted | {"pictures": count})
        found = read_json(manifest)
        with (folder / "_images.jsonl").open(encoding="utf-8") as lines:
            listed = sum(1 for _ in lines)
        if not isinstance(found, dict) or found.get("pictures") != listed:
            raise PolycovError(f"The list of pictures in {str(folder)!r} is damaged. Choose another --out.")
        changed = [key for key in wanted if found.get(key) != wanted[key]]
        if changed:
            raise PolycovError(
                f"{str(folder)!r} holds features of another {changed[0]}: {found.get(changed[0])!r}, "
                f"not {wanted[changed[0]]!r}. Choose another --out."
            )
        return int(found["pictures"])


def _walk(given: tuple[Path, ...]) -> Iterator[str]:
    """Picture files, one after the other as the disk has them: a list of them might not fit in memory."""
    known = extensions()
    for path in given:
        if not path.exists():
            raise PolycovError(f"There is no picture {str(path)!r}.")
        if path.is_file():
            yield str(path)
            continue
        folders = [str(path)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif entry.name.lower().endswith(known):
                        yield entry.path


def _shard(folder: Path, kind: str, number: int) -> Path:
    return folder / f"part-{number:06d}.{kind}"


def _done(folder: Path, kind: str, number: int) -> bool:
    return _shard(folder, kind, number).is_file()


def _pass(
    folder: Path, options: Embed, kind: str, model: Model, preprocessing: Preprocessing, tick: Callable[[int], None]
) -> bool:
    """Goes once through the list and makes the shards that nobody has made or is making; whether there were any."""
    made = False
    with (folder / "_images.jsonl").open(encoding="utf-8") as lines:
        number = -1
        while names := [json.loads(line) for line in itertools.islice(lines, options.shard)]:
            number += 1
            if _done(folder, kind, number):
                continue
            with try_lock(folder / f"_part-{number:06d}.lock") as mine:
                if mine and not _done(folder, kind, number):
                    _make(_shard(folder, kind, number), options, names, model, preprocessing, tick)
                    made = True
    return made


def _make(
    path: Path,
    options: Embed,
    names: list[str],
    model: Model,
    preprocessing: Preprocessing,
    tick: Callable[[int], None],
) -> None:
    samples = Samples(Files(Path()), names, [0] * len(names))
    batches = [range(i, min(i + options.batch_size, len(names))) for i in range(0, len(names), options.batch_size)]
    unread: dict[str, str] = {}

    def skip(index: int, reason: str) -> None:
        if options.broken == "stop":
            raise PolycovError(f"{reason} Leave such pictures out with --broken skip.")
        unread[names[index]] = reason

    kept: list[str] = []
    features: list[np.ndarray[Any, Any]] = []
    scales: list[np.ndarray[Any, Any]] = []
    with torch.inference_mode():
        for images, _, numbers in load(samples, preprocessing, batches, options.workers, skip):
            if len(numbers):
                vectors = model.embed(images.to(options.device, memory_format=torch.channels_last))
                codes, scale = store(vectors.cpu(), options.dtype)
                features.append(codes.numpy())
                scales += [] if scale is None else [scale.numpy()]
                kept += [names[int(i)] for i in numbers]
            tick(len(images))
    empty = np.zeros((0, model.pool.out_features), dtype=options.dtype)
    scale_of_each = np.concatenate([np.zeros(0, np.float32), *scales]) if options.dtype == "int8" else None
    write_file(path, lambda beside: _fill(beside, path.suffix, kept, np.concatenate([empty, *features]), scale_of_each))
    if unread:
        with wait_for_lock(path.parent / "_list.lock"):
            rows = [{"picture": name, "reason": reason} for name, reason in unread.items()]
            append_json_lines(path.parent / "_broken.jsonl", rows)


def _fill(
    path: Path, kind: str, names: list[str], features: "np.ndarray[Any, Any]", scales: "np.ndarray[Any, Any] | None"
) -> None:
    if kind == ".npz":
        arrays: dict[str, Any] = {"names": np.array(names, dtype=str), "features": features}
        if scales is not None:
            arrays["scales"] = scales
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1])
    texts = [os.fsencode(name).decode("utf-8", "replace") for name in names]
    table = {"name": pa.array(texts, pa.string()), "feature": column}
    if scales is not None:
        table["scale"] = pa.array(scales)
    pq.write_table(pa.table(table), path)
