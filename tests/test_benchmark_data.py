"""The programs in benchmarks/ that make the images of the documentation."""

import importlib.util
import random
import zipfile
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Large dots, different for every seed."""
    dots = Image.frombytes("L", (16, 16), random.Random(seed).randbytes(256))
    return dots.resize(size, Image.Resampling.NEAREST).convert("RGB")


def test_birds_are_the_sparrows_and_warblers_in_their_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["113.Baird_Sparrow/a.jpg", "182.Yellow_Warbler/b.jpg", "112.Great_Grey_Shrike/c.jpg"]
    for i, name in enumerate(names):
        path = tmp_path / "cub" / "images" / name
        path.parent.mkdir(parents=True)
        picture(i, (500, 400)).save(path)
    (tmp_path / "cub" / "images.txt").write_text("".join(f"{i} {n}\n" for i, n in enumerate(names, 1)))
    (tmp_path / "cub" / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
    program("birds").main(tmp_path / "cub", tmp_path / "out")
    assert "1 images for training, 1 for the test" in capsys.readouterr().out
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg"))
    assert files == ["test/182.Yellow_Warbler/b.jpg", "train/113.Baird_Sparrow/a.jpg"]
    with Image.open(tmp_path / "out" / files[0]) as image:
        assert image.size == (400, 320)


def test_textures_belong_to_the_class_that_their_name_speaks_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    textures = program("textures")
    assert [textures.class_of(name) for name in ("redbrick_1", "brick_wood", "brick_norm", "sky", "metalfloor")] == [
        "brick",
        *(None,) * 4,
    ]
    archive = tmp_path / "package" / "data.pk3"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        first = picture(0, (200, 150))
        for name, image in [("brick_a", first), ("brick_again", first), ("small_brick", picture(1, (64, 64)))]:
            content = BytesIO()
            image.save(content, "png")
            file.writestr(f"textures/{name}.png", content.getvalue())
        for i in range(3):
            content = BytesIO()
            picture(2 + i, (128, 256)).save(content, "png")
            file.writestr(f"textures/wood{i}.png", content.getvalue())
        file.writestr("textures/brick_broken.png", b"no picture")
    textures.main(archive.parent, tmp_path / "out")
    assert "brick 1" in capsys.readouterr().out
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg"))
    assert files == [f"{split}/{name}.jpg" for split, name in _EXPECTED]
    with Image.open(tmp_path / "out" / files[0]) as image:
        assert image.size == (320, 320)


_EXPECTED = [("test", "brick/000"), ("test", "wood/000"), ("train", "wood/001"), ("train", "wood/002")]
