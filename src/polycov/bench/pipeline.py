"""Images per second from files to features: each part and the whole, a plain script and the backbone alone."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from polycov.bench.measure import Tick, quartiles, ratios
from polycov.bench.photographs import enlarged
from polycov.bench.speed import Clock, Speed, measure_speed
from polycov.bench.tables import Row
from polycov.data.image_files import read_image
from polycov.data.read import read_data
from polycov.data.transforms import Preprocessing
from polycov.inference.embed import embed
from polycov.models.backbones import LAST, Backbone
from polycov.models.backends.frozen import Backend, ByStage, FrozenBackbone
from polycov.models.weights import OFFLINE_BACKBONE
from polycov.pooling.methods import create_pool
from polycov.training.config import NetworkOptions
from polycov.training.extraction import Extraction
from polycov.training.features import build_backbone

FIRST = 3  # batches that are not timed: engines are compiled, and images read ahead meanwhile
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

    @cached_property
    def files(self) -> list[Path]:
        """The image files, by name."""
        return sorted(self.folder.rglob("*.*"))

    def pixels(self) -> Tensor:
        """Returns the pixels of a batch of images, (B, H, W, 3)."""
        chosen = (self.files[i * len(self.files) // self.batch] for i in range(self.batch))
        return torch.stack([self.network.preprocessing().pixels(read_image(file)) for file in chosen])

    @torch.inference_mode()
    def draft_distance(self) -> float:
        """How much decoding at a reduced size changes local features: the mean over a batch, relative, in norm."""
        preprocessing = replace(self.network.preprocessing(), draft=True)
        contents = [enlarged(read_image(file)) for file in self.files[: self.batch]]
        sides = (None, preprocessing.decoded_side)
        whole, draft = (
            self.network(torch.stack([preprocessing(read_image(content, least=side)) for content in contents]))
            for side in sides
        )
        return float(((draft - whole).flatten(1).norm(dim=1) / whole.flatten(1).norm(dim=1)).mean())

    def limit(self, what: str) -> Callable[[], Speed]:
        """Returns a job for the speed of the backbone alone, on random pixels."""
        network: nn.Module = self.network
        if what == FEATURES and self.network.stage is not None:
            network = ByStage(self.complete, [*self.network.stage_names, LAST])
        preprocessing = self.network.preprocessing()
        frozen = FrozenBackbone(network, self.backend, batch_size=self.batch, preprocessing=preprocessing)
        x = torch.randint(0, 256, (self.batch, self.size, self.size, 3), dtype=torch.uint8)
        frozen(x)
        return lambda: measure_speed(lambda: frozen(x), self.batch, max(self.images // self.batch // 2, 1))

    def embed(self) -> Speed:
        """The speed of `polycov.embed`."""
        options: dict[str, Any] = {"backbone": self.backbone, "size": self.size, "batch_size": self.batch}
        options |= {"workers": self.workers, "backend": self.backend}
        clock = Clock()
        with tempfile.TemporaryDirectory() as out:
            embed(self.method, self.folder, Path(out) / "features", progress=clock, **options)
        return clock.speed(FIRST * self.batch)

    def features(self) -> Speed:
        """The speed of the extraction of a comparison: local features, and the average of the last layer."""
        clock, data = Clock(), read_data(self.folder)
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
        return clock.speed(FIRST * self.batch)

    def script(self) -> Speed:
        """The speed of `polycov.bench.plain_script`, in a process of its own, as any other script runs."""
        numbers = (self.size, self.batch, self.workers, torch.get_num_threads(), FIRST)
        arguments = [str(self.folder), self.backbone, *map(str, numbers)]
        command = [sys.executable, "-W", "ignore", "-m", "polycov.bench.plain_script", *arguments]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return Speed(*map(float, output.split()))

    def parts(self) -> dict[str, Callable[[], Speed]]:
        """Returns jobs for the speeds of the parts, each on one thread but for the network and what follows it."""
        files = self.files[: 4 * self.batch]
        preprocessing, count = self.network.preprocessing(), len(files)
        contents = [file.read_bytes() for file in files]
        pictures = [read_image(content) for content in contents]
        maps = self.network(torch.randn(self.batch, 3, self.size, self.size)).detach()
        pool = create_pool(self.method, self.network.num_features).eval()
        vectors = pool(maps).detach()
        classifier = nn.Linear(pool.out_features, 200)
        return {
            **_large_photographs(pictures[:4], preprocessing),
            "read": lambda: measure_speed(lambda: [file.read_bytes() for file in files], count),
            "decode": lambda: measure_speed(lambda: [read_image(content) for content in contents], count),
            "transform": lambda: measure_speed(lambda: [preprocessing.pixels(picture) for picture in pictures], count),
            "pool": lambda: measure_speed(lambda: pool(maps), self.batch, 8),
            "classifier": lambda: measure_speed(lambda: classifier(vectors), self.batch, 8),
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
    speeds: dict[str, list[Speed]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            with torch.inference_mode():
                speeds[name].append(job())
        if tick:
            tick()
    for name, values in speeds.items():
        low, middle, high = quartiles([speed.per_second for speed in values])
        row: Row = {"part": name, "images_per_second": middle, "lower_quartile": low, "upper_quartile": high}
        row["cpu_ms_per_image"] = quartiles([speed.cpu for speed in values])[1]
        limit = speeds[LIMIT[name]] if name in LIMIT else None
        row |= _relative("of_the_limit", values, limit) | _relative("of_the_script", values, speeds[PLAIN])
        yield row | {"distance": settings.draft_distance() if name == DRAFT else None}


def _relative(column: str, values: list[Speed], others: list[Speed] | None) -> Row:
    """How much faster than others, by the clock and by the CPU: medians over rounds."""
    if others is None:
        return {column: None, f"{column}_by_cpu": None}
    clock = ratios([speed.per_second for speed in values], [speed.per_second for speed in others])
    cpu = ratios([speed.cpu for speed in others], [speed.cpu for speed in values])
    return {column: quartiles(clock)[1], f"{column}_by_cpu": quartiles(cpu)[1]}


def _large_photographs(pictures: list[Image.Image], preprocessing: Preprocessing) -> dict[str, Callable[[], Speed]]:
    """Jobs for the speed of decoding and transforming photographs of a camera, at their own and at a reduced size."""
    contents, count = [enlarged(picture) for picture in pictures], len(pictures)
    side = replace(preprocessing, draft=True).decoded_side

    def job(least: int | None) -> Speed:
        return measure_speed(
            lambda: [preprocessing.pixels(read_image(content, least=least)) for content in contents], count
        )

    return {WHOLE: lambda: job(None), DRAFT: lambda: job(side)}
