"""A comparison on disk, and the work on it by any number of processes."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from polycov.bench.measure import hardware
from polycov.commands.compare import Compare
from polycov.commands.report import read_study, show, write_report
from polycov.comparing.grid import Setting, fitted_to, grid, parse_dims, parse_methods
from polycov.comparing.measure import Reduced, probe, trained
from polycov.comparing.report.gallery import make_gallery
from polycov.comparing.report.page import Study
from polycov.data.broken import look_for_broken, without_broken
from polycov.data.images import ImageData, check
from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.backbones import Backbone, fixed_size
from polycov.pooling.methods import method_options
from polycov.progress import make_console
from polycov.system.environment import versions
from polycov.system.files import append_json_lines, cache_folder, read_json_lines, try_lock, wait_for_lock, read_json, write_json
from polycov.training.config import Config, read_recipe
from polycov.training.experiment import preprocessing_for
from polycov.training.features import LocalFeatures, extract

Record = dict[str, Any]


def records(folder: Path) -> list[Record]:
    """Returns the records of a comparison, in order, each setting once."""
    found = {(row["method"], row["dim"], row["seed"]): row for row in read_json_lines(folder / "records.jsonl")}
    return list(found.values())


class Comparison:
    """A comparison: ``config.json`` says of what, and ``records.jsonl`` has a line for each setting that is done.

    Each setting is measured by a process that holds its lock, and its record is appended when it is whole. So a kill
    costs the settings in flight, and any number of processes can share a grid.
    """

    def __init__(self, options: Compare) -> None:
        self.options = options
        self.parent = int(os.environ["POLYCOV_JOB"]) if "POLYCOV_JOB" in os.environ else None
        self.leads = _leave_group() == 0 and self.parent is None
        self.methods, self.dims = parse_methods(options.methods), parse_dims(options.dims)
        for name in ("seeds", "jobs"):
            if getattr(options, name) < 1:
                raise PolycovError(f"Expected {name} to be at least 1, got {getattr(options, name)}.")
        self.console = make_console(quiet=not self.leads)
        self.cache = cache_folder(options.cache)
        self.config = _config(options).check()
        self.channels = self.config.model.channels or 0
        if self.channels < 1:
            raise PolycovError(f"Expected channels to be at least 1, got {self.channels}.")
        self.broken: set[str] = set()
        self.pictures = ""
        whole = self._read(0)
        with wait_for_lock(self.cache / "checking.lock"):  # one process looks, the others then know
            found = look_for_broken(whole, self.cache, self.console, max(options.workers, 1))
        whole = check(without_broken(whole, found, options.broken, self.console))
        self.broken = set(found)
        if not len(whole["val"]):
            raise PolycovError(
                "There are no validation pictures, on which everything is chosen. Expected --val-fraction above 0, and "
                "more than one training picture of some classes."
            )
        self.pictures = whole.fingerprint(stamps=True)
        given = self.config.data.size
        self.size = (fixed_size(options.backbone) or whole.side) if given is None else given
        Preprocessing(self.size, self.size)  # is it a size?
        self.folder = options.out or Path("runs") / f"compare-{whole.name}-{_digest(self._identity(whole))}"
        self._keep_identity(whole)
        self.console.print(f"comparison: {self.folder}", soft_wrap=True, markup=False)
        self.settings: list[Setting] = []
        self.stopping = False
        self.features: LocalFeatures | None = None

    def run(self) -> None:
        """Measures what is not measured yet, and tells the result."""
        if self.options.head == "probe":
            self.features = self._extract()
            self.channels = min(self.channels, self.features.channels)
        self._plan()
        helpers = [self._helper() for _ in range(self.options.jobs - 1)]
        main = threading.current_thread() is threading.main_thread()  # no other may say what signals do
        before = {sign: signal.signal(sign, self._stop) for sign in (signal.SIGINT, signal.SIGTERM)} if main else {}
        try:
            self._work()
        except BaseException:
            for helper in helpers:
                helper.terminate()
            raise
        finally:
            for helper in helpers:
                helper.wait()
            for sign, handler in before.items():
                signal.signal(sign, handler)
        if self.leads:
            study = read_study(self.folder)
            show(study, self.console)  # before anything is written, for which there may be no space
            self._gallery(study)
            write_report([self.folder], self.folder, self.console)

    def _stop(self, *_: object) -> None:
        """Ends by an exception, so that helpers are ended too. Where it strikes it may be lost, so it is remembered."""
        self.stopping = True
        raise KeyboardInterrupt

    def _plan(self) -> None:
        """Makes the grid, and says what is left out of it.

        Raises:
            PolycovError: if nothing is left, or features would not fit into memory.
        """
        data = self._read(0)
        samples = len(data["train"])
        self.settings = grid(self.methods, self.dims, self.options.seeds, self.channels, samples)
        out = {m: [d for d in self.dims if fitted_to(m, d) > samples] for m in self.methods if fitted_to(m, 1)}
        for method, dims in out.items():
            if dims:
                free = f" at {', '.join(map(str, dims))}" if "dim" in method_options(method) else ""
                why = f"a projection needs as many training pictures as it has dimensions, and there are {samples}"
                self.console.print(f"left out: {method}{free}: {why}", markup=False, soft_wrap=True)
        if not self.settings:
            raise PolycovError("Nothing is left to compare.")
        largest = max((s.dim or 0 for s in self.settings), default=0)
        count, there = len(data.everything()), _memory()
        need = 20 * largest * count
        if need > there:
            raise PolycovError(
                f"Features of {largest} dimensions of {count} pictures take some {need / 2**30:.0f} GB, and there are "
                f"{there / 2**30:.0f}. Choose smaller --dims."
            )

    def _gallery(self, study: Study) -> None:
        """Keeps pictures for the page: predictions of the feature that is recommended."""
        chosen = study.recommendation.chosen if study.recommendation else None
        for row in records(self.folder):
            if chosen is not None and (row["method"], row["dim"], row["seed"]) == (chosen.method, chosen.dim, 0):
                found = make_gallery(self._read(0), row["predictions"])
                write_json(self.folder / "gallery.json", {"of": chosen.label, **found})

    def _read(self, seed: int) -> ImageData:
        """The pictures, with the validation part of a seed; the test part is the same for all."""
        options = self.options
        fractions: dict[str, Any] = {"val_fraction": options.val_fraction, "test_fraction": options.test_fraction}
        data = read_data(options.data, **fractions, val_seed=seed)
        data = data.without(self.broken) if self.broken else data
        if self.pictures and data.fingerprint(stamps=True) != self.pictures:
            raise PolycovError(f"The pictures of {options.data!r} changed since the comparison began.")
        return data

    def _identity(self, data: ImageData) -> dict[str, Any]:
        """What all records of a comparison have in common. The pictures say which data, and how they are divided."""
        plain = self.config.to_dict()
        for name in ("data", "workers", "split_seed", "val_seed", "val_fraction", "test_fraction", "broken"):
            del plain["data"][name]
        plain["data"]["size"] = self.size
        del plain["model"]["pool"], plain["model"]["dim"], plain["training"]["seed"]
        if self.options.head == "probe":
            del plain["training"]
        return {"head": self.options.head, "config": plain, "pictures": [data.fingerprint(), self.pictures]}

    def _keep_identity(self, data: ImageData) -> None:
        """Writes what the comparison is of; or refuses to mix it with another."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, now = self.folder / "config.json", self._identity(data)
        with wait_for_lock(self.folder / "config.lock"):
            if not path.is_file():
                more = {"classes": data.classes, "data": data.name, "source": self.options.data, "notes": data.notes}
                counts = {part: len(samples) for part, samples in data.parts.items()}
                command = " ".join(["polycov", *map(shlex.quote, sys.argv[1:])])
                write_json(path, {"identity": now, **more, "counts": counts, "command": command})
        before, after = _flat(read_json(path).get("identity")), _flat(json.loads(json.dumps(now)))
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if changed:
            name = changed[0]
            was = "other pictures" if name == "pictures" else f"{name} {before.get(name)!r}, not {after.get(name)!r}"
            raise PolycovError(f"{str(self.folder)!r} holds a comparison with {was}. Choose another --out.")

    def _helper(self) -> "subprocess.Popen[bytes]":
        """Starts another process on the same comparison, silent, with its share of the cores."""
        threads = max(1, (os.cpu_count() or 1) // self.options.jobs)
        torch.set_num_threads(threads)
        options = replace(self.options, jobs=1, out=self.folder)
        flags = [
            text
            for name, value in vars(options).items()
            if name != "data" and value is not None
            for text in (f"--{name.replace('_', '-')}", str(value))
        ]
        environment = {**os.environ, "POLYCOV_JOB": str(os.getpid()), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "polycov", "compare", options.data, *flags]
        return subprocess.Popen(command, env=environment, start_new_session=True)  # Ctrl-C is for this process alone

    def _work(self) -> None:
        """Goes through the grid until all of it is measured, by this process or another."""
        reduced = Reduced(self.features) if self.features is not None else None
        (self.folder / "locks").mkdir(exist_ok=True)
        with Live(console=self.console, refresh_per_second=2, transient=True) as live:
            while left := self._left(live):
                made = False
                for setting in left:
                    if self.stopping:
                        raise KeyboardInterrupt
                    if self.parent not in (None, os.getppid()):
                        return  # the process that started this one is gone
                    with try_lock(self.folder / "locks" / setting.key) as mine:
                        if mine and not self._done(setting):
                            self._tell(setting, self._measure(setting, reduced))
                            made = True
                    if made:
                        self._left(live)
                if not made:
                    time.sleep(0.5)  # other processes have what is left

    def _done(self, setting: Setting) -> bool:
        return any((r["method"], r["dim"], r["seed"]) == _key(setting) for r in records(self.folder))

    def _left(self, live: Live) -> list[Setting]:
        """The settings that have no record yet; shows where the comparison is."""
        found = records(self.folder)
        done = {(r["method"], r["dim"], r["seed"]) for r in found}
        left = [setting for setting in self.settings if _key(setting) not in done]
        live.update(live_table(found, self.settings, left))
        return left

    def _tell(self, setting: Setting, record: Record) -> None:
        """A line for each setting, where no live table can be shown."""
        if not self.console.is_terminal:
            size = "" if setting.dim is None else f", {setting.dim}"
            text = f"{setting.method}{size}, seed {setting.seed}: test {record['test_accuracy']:.1%}"
            self.console.print(text, markup=False)

    def _measure(self, setting: Setting, reduced: Reduced | None) -> Record:
        start, data = time.time(), self._read(setting.seed)
        if reduced is not None:
            record = probe(setting, data, reduced, self.channels)
        else:
            record = trained(setting, data, self.config, self.folder / "runs" / setting.key, self.cache)
        row = {
            "method": setting.method,
            "dim": setting.dim,
            "seed": setting.seed,
            "head": self.options.head,
            "data": self.options.data,
            "backbone": self.options.backbone,
            **record,
            "seconds": time.time() - start,
            "threads": torch.get_num_threads(),
            "hardware": hardware("cpu"),
            "versions": versions(),
        }
        whole = data.everything()
        number = {whole.name(i): i for i in range(len(whole))}
        val = [number[data["val"].name(i)] for i in range(len(data["val"]))]
        (self.folder / "splits").mkdir(exist_ok=True)
        write_json(self.folder / "splits" / f"{setting.seed}.json", val)
        with wait_for_lock(self.folder / "records.lock"):
            append_json_lines(self.folder / "records.jsonl", [row])
        return row

    def _extract(self) -> LocalFeatures:
        """Local features of all pictures, computed once; one process does, the others wait."""
        options, data = self.config.data, self._read(0)
        size = self.size
        wanted = None if self.options.stage == "last" else self.options.stage
        backbone = Backbone(self.options.backbone, weights=self.options.weights, stage=wanted, size=size)
        with wait_for_lock(self.folder / "features.lock"):
            prepared = preprocessing_for(options, data, backbone)
            stage = "last layer" if backbone.stage is None else f"stage {backbone.stage}"
            facts = {"stage": stage, "size": size, "locations": backbone.locations(size)}
            write_json(self.folder / "features.json", facts | {"channels": backbone.num_features})
            return extract(backbone, data, prepared, self.cache, self.console, workers=options.workers)


def live_table(found: list[Record], settings: list[Setting], left: list[Setting]) -> Table:
    """Returns where a comparison is: test accuracy by method and dimension so far, and the time left."""
    cells: dict[str, dict[int | None, list[float]]] = {}
    wanted = {(s.method, s.dim, s.seed) for s in settings}
    times = []
    for row in found:
        if (row["method"], row["dim"], row["seed"]) in wanted:
            cells.setdefault(row["method"], {}).setdefault(row["dim"], []).append(row["test_accuracy"])
            times.append(row["seconds"])
    dims = sorted({s.dim for s in settings if s.dim is not None})
    done = len(settings) - len(left)
    remaining = f", about {len(left) * sum(times) / len(times) / 60:.0f} min left" if times and left else ""
    table = Table(title=f"test accuracy, {done} of {len(settings)} settings{remaining}")
    table.add_column("method")
    for dim in (None, *dims):
        table.add_column("own size" if dim is None else str(dim), justify="right")
    for method in dict.fromkeys(s.method for s in settings):
        values = [cells.get(method, {}).get(dim) for dim in (None, *dims)]
        table.add_row(escape(method), *(f"{sum(v) / len(v):.1%} ({len(v)})" if v else "" for v in values))
    return table


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries, by the name of their last key."""
    if not isinstance(value, dict):
        return {name: value}
    return {key: leaf for inner, one in value.items() for key, leaf in _flat(one, inner).items()}


def _memory() -> int:
    """The bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _key(setting: Setting) -> tuple[str, int | None, int]:
    return (setting.method, setting.dim, setting.seed)


def _leave_group() -> int:
    """Returns the rank among the processes of a launcher, and leaves their group: each measures settings of its own.

    With GPUs, each takes one.
    """
    rank, local = int(os.environ.get("RANK", "0")), os.environ.get("LOCAL_RANK")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if local is not None:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", local)
    return rank


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _config(options: Compare) -> Config:
    """The configuration of a training, of which a probe takes the data and the model."""
    base = read_recipe(options.recipe) if options.recipe is not None else Config()
    probing = options.head == "probe"
    channels = options.channels if options.channels is not None else 128 if probing else 256
    size = base.data.size if options.size is None else options.size
    return Config(
        replace(
            base.data,
            data=options.data,
            size=size,
            val_fraction=options.val_fraction,
            test_fraction=options.test_fraction,
            broken=options.broken,
            workers=options.workers,
        ),
        replace(
            base.model,
            backbone=options.backbone,
            weights=options.weights,
            stage=options.stage,
            channels=channels,
        ),
        replace(
            base.training,
            probe=probing,
            freeze=options.head == "train",
            epochs=options.epochs if options.epochs is not None else base.training.epochs,
        ),
    )
