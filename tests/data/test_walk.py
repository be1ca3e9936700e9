import os
from pathlib import Path

import pytest

from fake_images import make_image, write_classes
from polycov.data.image_files import image_extensions
from polycov.data.walk import count_images, iterate_images, list_images
from polycov.errors import PolycovError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = write_classes(tmp_path / "root", ["a", "b"], 2)
    (root / "a" / "deep").mkdir()
    make_image(0, 5).save(root / "a" / "deep" / "UPPER.PNG")
    (root / "a" / "notes.txt").write_text("not an image")
    (root / ".hidden").mkdir()
    make_image(0, 6).save(root / ".hidden" / "1.jpg")
    make_image(0, 7).save(root / "b" / ".hidden.jpg")
    return root


FILES = ["a/000.jpg", "a/001.jpg", "a/deep/UPPER.PNG", "b/000.jpg", "b/001.jpg"]


def test_images_are_listed_sorted_and_relative_without_hidden_ones(folder: Path) -> None:
    assert list_images(folder) == FILES


def test_images_are_listed_alike_in_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert list_images(Path()) == FILES
    assert sorted(iterate_images([Path("a"), Path("b/000.jpg")])) == [*FILES[:3], "b/000.jpg"]


def test_files_and_folders_are_iterated_in_the_order_given(folder: Path) -> None:
    notes = folder / "a" / "notes.txt"
    paths = list(iterate_images([folder / "b", notes, folder / "a"]))
    assert paths[:2] == [str(folder / name) for name in FILES[3:]]
    assert paths[2] == str(notes)  # given by name: the reader decides
    assert paths[3:] == [str(folder / name) for name in FILES[:3]]


def test_iterating_is_lazy(folder: Path) -> None:
    images = iterate_images([folder / "a" / "000.jpg", folder / "absent"])
    assert next(images) == str(folder / "a" / "000.jpg")
    with pytest.raises(PolycovError, match=r"^There is no file or folder '.*absent'\.$"):
        next(images)


@pytest.mark.parametrize("target", [".", "a", "a/deep", "..", "/"])
def test_links_to_folders_above_or_already_visited_are_ignored(folder: Path, target: str) -> None:
    (folder / "a" / "deep" / "loop").symlink_to(folder / target, target_is_directory=True)
    assert list_images(folder) == FILES
    assert len(list(iterate_images([folder]))) == len(FILES)


def test_links_in_a_circle_end(folder: Path, tmp_path: Path) -> None:
    outside = write_classes(tmp_path / "outside", ["c"], 1)
    (folder / "a" / "out").symlink_to(outside)
    (outside / "c" / "back").symlink_to(folder / "a")
    (folder / "itself.jpg").symlink_to(folder / "itself.jpg")
    assert list_images(folder) == [*FILES[:3], "a/out/c/000.jpg", *FILES[3:], "itself.jpg"]


def test_linked_folders_are_followed_once_and_real_folders_keep_their_own_path(folder: Path, tmp_path: Path) -> None:
    outside = write_classes(tmp_path / "outside", ["c"], 1)
    (folder / "a" / "other").symlink_to(folder / "b")  # visited before b itself, alphabetically
    (folder / "a" / "z").symlink_to(outside)
    (folder / "b" / "z").symlink_to(outside)
    assert list_images(folder) == [*FILES[:3], "a/z/c/000.jpg", *FILES[3:]]
    assert list_images(folder / "a") == ["000.jpg", "001.jpg", "deep/UPPER.PNG", "other/000.jpg", "other/001.jpg",
                                         "z/c/000.jpg"]  # fmt: skip


def test_linked_files_and_broken_links_are_listed(folder: Path) -> None:
    (folder / "link.jpg").symlink_to(folder / "a" / "000.jpg")
    (folder / "later.jpg").symlink_to(folder / "absent.jpg")
    assert list_images(folder) == [*FILES, "later.jpg", "link.jpg"]


def test_only_images_in_the_folder_itself_are_counted(folder: Path) -> None:
    assert count_images(folder) == 0
    assert count_images(folder / "b") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every folder")
def test_folders_that_cannot_be_read_raise(folder: Path) -> None:
    (folder / "b").chmod(0)
    try:
        with pytest.raises(PermissionError):
            list_images(folder)
    finally:
        (folder / "b").chmod(0o755)


def test_a_folder_removed_during_the_walk_raises(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_images(folder / "absent")


def test_extensions_are_those_of_readable_formats() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".tiff"} <= set(image_extensions())
    assert ".pdf" not in image_extensions()  # Pillow can only write it
