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
    from polycov.bench.photographs import link_images  # these need the extra train
    from polycov.bench.pipeline import Pipeline, pipeline

    with TemporaryDirectory() as folder, terminal.progress.task("pipeline", rounds) as task:
        link_images(None if data == GENERATED else data, Path(folder), images)
        settings = Pipeline(Path(folder), images, backend)
        rows = list(pipeline(settings, rounds, task.advance))
    cells = []
    for row in rows:
        spread = f"{row['images_per_second']:.1f} ({row['lower_quartile']:.1f}–{row['upper_quartile']:.1f})"
        limit = [row[name] for name in ("of_the_limit", "of_the_limit_by_cpu")]
        limits = ("" if share is None else f"{100 * share:.0f} %" for share in limit)
        script = (f"{row[name]:.2f}" for name in ("of_the_script", "of_the_script_by_cpu"))
        cells.append((row["part"], spread, f"{row['cpu_ms_per_image']:.2f}", *limits, *script))
    change = next(row["distance"] for row in rows if row["distance"] is not None)
    terminal.write(f"--draft changes the local features of images of 12 megapixels by {change:.1%}.")
    columns = ("part", "images per second", "CPU, ms", "of the limit", "by CPU", "× plain script", "by CPU")
    terminal.table(Table(columns, cells, f"{settings.backbone}, {settings.size} pixels, {images} images"))
    return rows


def run_backends(terminal: Terminal, data: str, compiled: bool, rounds: int) -> list[Row]:
    """Measures ways to run the default backbone on a batch of images, and shows them."""
    from polycov.bench.backends import backends  # needs the extra train
    from polycov.bench.photographs import LEAST, link_images
    from polycov.bench.pipeline import Pipeline

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
