"""A full disk ends a command with a sentence, and nothing that was there before is lost."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from command_line import COMPARE, FROZEN, PROBE, SMALL, run, succeed
from fake_images import write_data

COMMANDS = {
    "train": ["train", "{trees}", "-o", "{disk}/run", *PROBE],
    "train frozen": ["train", "{trees}", "-o", "{disk}/frozen", *FROZEN],
    "extract": ["train", "{trees}", "-o", "{disk}/extracted", *PROBE],
    "compare": ["compare", "{trees}", "-o", "{disk}/cmp", *COMPARE],
    "embed npz": ["embed", "average", "{trees}", "-o", "{disk}/npz", "--format", "npz", *SMALL],
    "embed parquet": ["embed", "average", "{trees}", "-o", "{disk}/parquet", "--format", "parquet", *SMALL],
    "report": ["report", "{cmp}", "-o", "{disk}/report"],
    "predict": ["predict", "{run}", "{trees}", "-o", "{disk}/predictions.csv"],
    "evaluate": ["evaluate", "{run}", "-o", "{disk}/evaluation", "--workers", "0"],
    "export folder": ["export", "{run}", "-o", "{disk}/model"],
    "export pt2": ["export", "{run}", "-o", "{disk}/model.pt2"],
    "export onnx": ["export", "{run}", "-o", "{disk}/model.onnx"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("made")
    trees = write_data(root / "trees", train=4, test=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYCOV_CACHE", str(root / "cache"))
        succeed("train", trees, "-o", root / "run", *PROBE)
        succeed("compare", trees, "-o", root / "cmp", *COMPARE)
    return {name: str(root / name) for name in ("trees", "run", "cmp", "cache")}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Lets no file grow beyond a size: what a program sees is almost that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def words(name: str, made: dict[str, str], disk: Path) -> list[str]:
    result = COMMANDS[name]
    for key, value in {**made, "disk": str(disk)}.items():
        result = [word.replace(f"{{{key}}}", value) for word in result]
    return result


def earlier_files(disk: Path) -> dict[Path, bytes]:
    """Files of earlier work, where the commands will write."""
    places = ["predictions.csv", "evaluation/evaluation.json", "evaluation/predictions.csv", "report/report.html"]
    files = {disk / place: b"earlier\n" for place in [*places, "model.pt2", "model.onnx"]}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def check(name: str, made: dict[str, str], disk: Path, earlier: dict[Path, bytes]) -> None:
    code, text = run(*words(name, made, disk))
    assert code == 1, text
    assert text.startswith("polycov: [Errno ")
    assert len(text.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in earlier} == earlier
    assert [path for path in disk.rglob("*") if path.name.endswith(".tmp")] == []


def use_cache(name: str, made: dict[str, str], disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of earlier work; for the extraction of features one on the full disk."""
    monkeypatch.setenv("POLYCOV_CACHE", str(disk / "cache") if name == "extract" else made["cache"])


SLOW = {name: [pytest.mark.slow] if name in ("export pt2", "export onnx") else [] for name in COMMANDS}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW[name]) for name in COMMANDS])
def test_a_file_that_cannot_grow(
    made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    earlier = earlier_files(tmp_path)
    use_cache(name, made, tmp_path, monkeypatch)
    with largest_file(100):
        check(name, made, tmp_path, earlier)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 256 KB, where the system lets us have one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    command = [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this system mounts no disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "export onnx"])
def test_a_disk_that_is_full(
    made: dict[str, str], small_disk: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    earlier = earlier_files(small_disk)
    use_cache(name, made, small_disk, monkeypatch)
    with suppress(OSError):
        (small_disk / "large").write_bytes(bytes(2**20))
    check(name, made, small_disk, earlier)
