"""``polycov bench --what pipeline backends``: how fast files become features."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from polycov.bench.tables import Row
from polycov.commands.terminal import Terminal
from polycov.system.tables import Table

Backend = Literal["auto", "torch", "onnxruntime", "openvino"]
GENERATED = "typefaces"  # the default of other benchmarks, which are no image files


def run_pipeline(terminal: Terminal, data: str, images: int, backend: Backend, rounds: int) -> list[Row]:
    """Measures images per second of every part and of the whole, and shows them."""
    from polycov.bench.pipeline import Pipeline, link_images, pipeline  # needs the extra train

    with TemporaryDirectory() as folder, terminal.progress.task("pipeline", rounds) as task:
        link_images(None if data == GENERATED else data, Path(folder), images)
        settings = Pipeline(Path(folder), images, backend)
        rows = list(pipeline(settings, rounds, task.advance))
    cells = []
    for row in rows:
        spread = f"{row['images_per_second']:.1f} ({row['lower_quartile']:.1f}–{row['upper_quartile']:.1f})"
        limit = "" if row["of_the_limit"] is None else f"{100 * row['of_the_limit']:.0f} %"
        cells.append((row["part"], spread, limit, f"{row['of_the_script']:.2f}"))
    change = next(row["distance"] for row in rows if row["distance"] is not None)
    terminal.write(f"--draft changes the local features of images of 12 megapixels by {change:.1%}.")
    columns = ("part", "images per second", "of the backbone alone", "× plain script")
    terminal.table(Table(columns, cells, f"{settings.backbone}, {settings.size} pixels, {images} images"))
    return rows


def run_backends(terminal: Terminal, data: str, compiled: bool, rounds: int) -> list[Row]:
    """Measures ways to run the default backbone on a batch of images, and shows them."""
    from polycov.bench.backends import backends  # needs the extra train
    from polycov.bench.pipeline import LEAST, Pipeline, link_images

    with TemporaryDirectory() as folder, terminal.progress.task("backends", rounds + 1) as task:
        link_images(None if data == GENERATED else data, Path(folder), LEAST)
        settings = Pipeline(Path(folder), LEAST)
        rows = list(
            backends(
                settings.network,
                settings.network.preprocessing(),
                settings.pixels(),
                rounds,
                task.advance,
                compiled=compiled,
            )
        )
    cells = []
    for row in rows:
        spread = f"{row['images_per_second']:.1f} ({row['lower_quartile']:.1f}–{row['upper_quartile']:.1f})"
        cells.append((row["backend"], spread, f"{row['of_plain']:.2f}", f"{row['distance']:.1e}"))
    columns = ("backend", "images per second", "× torch", "relative distance from torch")
    terminal.table(Table(columns, cells, f"{settings.backbone}, {settings.size} pixels, batch {settings.batch}"))
    return rows
