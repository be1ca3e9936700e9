"""Images per second from files to features: each part and the whole, a plain script and the backbone alone."""

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from polycov.bench.measure import Tick, quartiles, ratios
from polycov.bench.tables import Row
from polycov.data.image_files import read_image
from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.data.walk import list_images
from polycov.errors import PolycovError
from polycov.inference.embed import embed
from polycov.models.backbones import Backbone
from polycov.models.backends.frozen import Backend, FrozenBackbone, StageAndLast
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.pooling.methods import create_pool
from polycov.progress import Progress, Task
from polycov.training.config import NetworkOptions
from polycov.training.extraction import Extraction
from polycov.training.features import build_backbone

FIRST = 6  # batches that are not timed: engines are compiled, and images read ahead meanwhile
LEAST = 192
WHOLE, DRAFT = "decode and transform 12 megapixels", "the same with --draft"
PLAIN, EMBED, FEATURES = "plain script", "embed", "features"
LIMIT = {EMBED: "backbone alone", FEATURES: "backbone alone, two outputs"}


@dataclass(frozen=True)
class Pipeline:
    """What is measured.

    Attributes:
        folder: two class folders of images.
        images: how many they are.
        backend: what runs the backbone.
        backbone: name of the backbone.
        size: side of the images.
        batch: images per batch.
        workers: processes that read images.
        method: pool of the embedding.
    """

    folder: Path
    images: int
    backend: Backend = "auto"
    backbone: str = OFFLINE_BACKBONE
    size: int = 320
    batch: int = 16
    workers: int = 2
    method: str = "ipccp-ts"

    @cached_property
    def network(self) -> Backbone:
        """The backbone up to the stage that is pooled."""
        return build_backbone(NetworkOptions(self.backbone), self.size).eval()

    @cached_property
    def complete(self) -> Backbone:
        """The backbone with all layers."""
        return build_backbone(NetworkOptions(self.backbone, stage="last"), self.size).eval()

    def pixels(self) -> Tensor:
        """Returns the pixels of a batch of images, (B, H, W, 3)."""
        files = sorted(self.folder.rglob("*.*"))
        chosen = (files[i * len(files) // self.batch] for i in range(self.batch))
        return torch.stack([self.network.preprocessing().pixels(read_image(file)) for file in chosen])

    @torch.inference_mode()
    def draft_distance(self) -> float:
        """How much decoding at a reduced size changes local features: the mean over a batch, relative, in norm."""
        files = sorted(self.folder.rglob("*.*"))[: self.batch]
        preprocessing = replace(self.network.preprocessing(), draft=True)
        contents = [enlarged(read_image(file)) for file in files]
        sides = (None, preprocessing.decoded_side)
        whole, draft = (
            self.network(torch.stack([preprocessing(read_image(content, least=side)) for content in contents]))
            for side in sides
        )
        return float(((draft - whole).flatten(1).norm(dim=1) / whole.flatten(1).norm(dim=1)).mean())

    def limit(self, what: str) -> Callable[[], float]:
        """Returns a job for the rate of the backbone alone, on random pixels."""
        stage = self.network.stage
        both = what == FEATURES and stage is not None
        network: nn.Module = StageAndLast(self.complete, stage) if both and stage is not None else self.network
        preprocessing = self.network.preprocessing()
        frozen = FrozenBackbone(network, self.backend, batch_size=self.batch, preprocessing=preprocessing)
        x = torch.randint(0, 256, (self.batch, self.size, self.size, 3), dtype=torch.uint8)
        frozen(x)
        return lambda: _rate(lambda: frozen(x), self.batch, max(self.images // self.batch // 3, 1))

    def embed(self) -> float:
        """The rate of `polycov.embed`."""
        options: dict[str, Any] = {"backbone": self.backbone, "size": self.size, "batch_size": self.batch}
        options |= {"workers": self.workers, "backend": self.backend}
        clock = _Clock()
        with tempfile.TemporaryDirectory() as out:
            embed(self.method, self.folder, Path(out) / "features", progress=clock, **options)
        return clock.rate(FIRST * self.batch)

    def features(self) -> float:
        """The rate of the extraction of a comparison: local features, and the average of the last layer."""
        clock, data = _Clock(), read_data(self.folder)
        complete = self.complete if self.network.stage is not None else None
        with tempfile.TemporaryDirectory() as cache:
            Extraction(
                self.network,
                data,
                self.network.preprocessing(),
                Path(cache),
                complete,
                batch_size=self.batch,
                workers=self.workers,
                backend=self.backend,
                progress=clock,
            ).run()
        return clock.rate(FIRST * self.batch)

    def script(self) -> float:
        """The rate of `polycov.bench.plain_script`, in a process of its own, as any other script runs."""
        numbers = (self.size, self.batch, self.workers, torch.get_num_threads(), FIRST)
        arguments = [str(self.folder), self.backbone, *map(str, numbers)]
        command = [sys.executable, "-W", "ignore", "-m", "polycov.bench.plain_script", *arguments]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def parts(self) -> dict[str, Callable[[], float]]:
        """Returns jobs for the rates of the parts, each on one thread but for the network and what follows it."""
        files = sorted(self.folder.rglob("*.*"))[: 4 * self.batch]
        preprocessing, count = self.network.preprocessing(), len(files)
        contents = [file.read_bytes() for file in files]
        pictures = [read_image(content) for content in contents]
        maps = self.network(torch.randn(self.batch, 3, self.size, self.size)).detach()
        pool = create_pool(self.method, self.network.num_features).eval()
        vectors = pool(maps).detach()
        classifier = nn.Linear(pool.out_features, 200)
        return {
            **_large_photographs(pictures[:4], preprocessing),
            "read": lambda: _rate(lambda: [file.read_bytes() for file in files], count),
            "decode": lambda: _rate(lambda: [read_image(content) for content in contents], count),
            "transform": lambda: _rate(lambda: [preprocessing.pixels(picture) for picture in pictures], count),
            "pool": lambda: _rate(lambda: pool(maps), self.batch, 8),
            "classifier": lambda: _rate(lambda: classifier(vectors), self.batch, 8),
        }


def pipeline(settings: Pipeline, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Yields a row for each part, for the whole, for the plain script and for the backbone alone.

    In each round everything runs once, one after the other. Times begin after the first batches.

    Args:
        settings: what to measure.
        rounds: the number of rounds.
        tick: called after each round.
    """
    jobs = settings.parts() | {LIMIT[what]: settings.limit(what) for what in (EMBED, FEATURES)}
    jobs |= {EMBED: settings.embed, FEATURES: settings.features, PLAIN: settings.script}
    rates: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            with torch.inference_mode():
                rates[name].append(job())
        if tick:
            tick()
    for name, values in rates.items():
        low, middle, high = quartiles(values)
        row: Row = {"part": name, "images_per_second": middle, "lower_quartile": low, "upper_quartile": high}
        limit = quartiles(ratios(values, rates[LIMIT[name]]))[1] if name in LIMIT else None
        row |= {"of_the_limit": limit, "of_the_script": quartiles(ratios(values, rates[PLAIN]))[1]}
        yield row | {"distance": settings.draft_distance() if name == DRAFT else None}


def enlarged(image: Image.Image, pixels: int = 12_000_000) -> bytes:
    """Returns the JPEG of an image, enlarged to so many pixels, as a camera takes them."""
    scale = (pixels / (image.width * image.height)) ** 0.5
    content = io.BytesIO()
    image.resize((round(scale * image.width), round(scale * image.height))).save(content, "JPEG", quality=90)
    return content.getvalue()


def _large_photographs(pictures: list[Image.Image], preprocessing: Preprocessing) -> dict[str, Callable[[], float]]:
    """Jobs for the rate of decoding and transforming photographs of a camera, at their own and at a reduced size."""
    contents, count = [enlarged(picture) for picture in pictures], len(pictures)
    side = replace(preprocessing, draft=True).decoded_side

    def job(least: int | None) -> float:
        return _rate(lambda: [preprocessing.pixels(read_image(content, least=least)) for content in contents], count)

    return {WHOLE: lambda: job(None), DRAFT: lambda: job(side)}


def _rate(job: Callable[[], object], images: int, times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        job()
    return times * images / (time.perf_counter() - begin)


class _Clock(Progress):
    """Remembers when images were done, in the last task."""

    def task(self, description: str, total: int) -> Task:
        """Begins a task whose moments are kept."""
        self.moments = moments = list[tuple[float, int]]()

        class Timed(Task):
            def update(self, completed: int, status: str = "") -> None:
                if completed > self.completed:
                    moments.append((time.perf_counter(), completed))
                super().update(completed, status)

        return Timed(description, total)

    def rate(self, first: int) -> float:
        """Returns images per second after the first ones."""
        later = [moment for moment in self.moments if moment[1] >= first]
        (begin, done), (end, all_done) = later[0], later[-1]
        return (all_done - done) / (end - begin)


def link_images(source: str | None, folder: Path, count: int) -> None:
    """Fills two class folders with links to images, evenly chosen, or with generated ones of 500 × 375 pixels.

    Args:
        source: folder of images; None to generate them.
        folder: where to put them.
        count: how many.

    Raises:
        PolycovError: if the folder has no images, or there would be too few.
    """
    if count < LEAST:
        raise PolycovError(f"Expected at least {LEAST} images, got --images {count}.")
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
    names = list_images(Path(source)) if source is not None else []
    if source is not None and not names:
        raise PolycovError(f"There are no images in {source!r}.")
    for i in range(count):
        target = folder / "ab"[i % 2] / f"{i:05d}.jpg"
        if source is None:
            _photograph(i).save(target, quality=90)
        else:
            target.symlink_to((Path(source) / names[i * len(names) // count]).resolve())


def _photograph(seed: int) -> Image.Image:
    """Smooth colours with some noise, whose JPEG takes about as long to decode as a photograph's."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = smooth + generator.integers(-12, 13, smooth.shape, dtype=np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
