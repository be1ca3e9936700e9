"""Names that are not UTF-8 go through every command."""

import os
import shutil
from pathlib import Path

import pytest

from command_line import COMPARE, PROBE, SMALL, succeed
from fake_images import write_data
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.training.run_folder import RunFolder

ODD = os.fsdecode(b"caf\xe9")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in a folder, a class and files whose names are not UTF-8."""
    root = write_data(tmp_path_factory.mktemp("names") / f"data {ODD}", train=4, test=2)
    for split in ("train", "test"):
        (root / split / "ash").rename(root / split / ODD)
        for path in (root / split / ODD).iterdir():
            path.rename(path.with_name(f"{ODD}-{path.name}"))
    return root


def test_names_that_are_not_utf8_survive_every_command(odd: Path, tmp_path: Path) -> None:
    run = tmp_path / f"run {ODD}"
    succeed("train", odd, "-o", run, *PROBE)
    assert ODD in RunFolder(run).load().classes
    succeed("train", "--resume", run)
    succeed("evaluate", run, "--workers", "0")
    assert os.fsencode(f"{ODD}-004.jpg") in (run / "evaluation" / "predictions.csv").read_bytes()
    succeed("predict", run, odd / "test", "-o", tmp_path / "p.csv")
    assert os.fsencode(f"{ODD}-004.jpg") in (tmp_path / "p.csv").read_bytes()
    succeed("predict", run, odd / "test")  # a table for a terminal
    for kind in ("npz", "parquet"):
        succeed("embed", "average", odd / "test", "-o", tmp_path / kind, "--format", kind, *SMALL)
        succeed("embed", "average", odd / "test", "-o", tmp_path / kind, "--format", kind, *SMALL)
        succeed("search", tmp_path / kind, odd / "test" / ODD, "-o", tmp_path / f"{kind}.html")
        assert "cannot be read" not in (tmp_path / f"{kind}.html").read_text(encoding="utf-8")
    names = [name for shard in EmbeddingFolder(tmp_path / "npz").shards() for name in shard.names]
    assert str(odd / "test" / ODD / f"{ODD}-004.jpg") in names


def test_names_that_are_not_utf8_survive_a_comparison_and_its_report(odd: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"cmp {ODD}"
    succeed("compare", odd, "-o", folder, *COMPARE)
    (folder / "report.html").unlink()
    shutil.rmtree(folder / "figures")
    succeed("report", folder)
    assert (folder / "report.html").stat().st_size > 10_000


def test_embedding_ends_where_links_lead_in_a_circle(odd: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(odd / "test", images)
    (images / "birch" / "up").symlink_to(images)
    (images / "birch" / "self").symlink_to(images / "birch" / "self")
    (images / "cedar" / "other").symlink_to(images / "birch")
    succeed("embed", "average", images, "-o", tmp_path / "out", "--format", "npz", *SMALL)
    assert EmbeddingFolder(tmp_path / "out").manifest.images == 6
