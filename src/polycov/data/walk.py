"""The walk over image files in folders."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from polycov.data.image_files import image_extensions
from polycov.errors import PolycovError

TAR, PARQUET = ".tar", ".parquet"
ARCHIVES = (TAR, PARQUET)
EMBEDDING = "_embedding.json"  # in a folder of features, whose Parquet files hold no images
Choose = Callable[[list[str]], list[str]]


def is_image(name: str) -> bool:
    """Returns whether a file has the extension of an image, and is not hidden."""
    file = name.rpartition("/")[2]
    return file.lower().endswith(image_extensions()) and not file.startswith(".")


def images_only(names: list[str]) -> list[str]:
    """Returns the images among the files of a folder, sorted."""
    return sorted(name for name in names if is_image(name))


def images_or_archives(names: list[str]) -> list[str]:
    """Returns the images among the files of a folder; where there are none, its tars and Parquet files."""
    archives = sorted(name for name in names if name.lower().endswith(ARCHIVES))
    if any(name.endswith(EMBEDDING) for name in names):
        archives = []
    return images_only(names) or archives


def iterate_images(paths: Iterable[Path], choose: Choose = images_only) -> Iterator[str]:
    """Yields image files one by one, without a list of all of them in memory.

    The images of each folder come sorted by name, those of its folders after its own. Files given by name are always
    yielded, in the order given. In folders, hidden files and folders are skipped. Linked folders
    are followed, each once and after all others, unless they lie above the link.

    Args:
        paths: files and folders.
        choose: which of the files in a folder to yield, and in which order.

    Raises:
        PolycovError: if a path does not exist.
        OSError: if a folder cannot be read.
    """
    for path in paths:
        if not path.exists():
            raise PolycovError(f"There is no file or folder {str(path)!r}.")
        if path.is_dir():
            yield from _walk(str(path), choose)
        else:
            yield str(path)


def list_images(folder: Path) -> list[str]:
    """Returns the image files in a folder and below, sorted, as paths relative to it with forward slashes.

    Raises:
        OSError: if a folder cannot be read.
    """
    prefix = os.path.join(folder, "")
    return sorted(path[len(prefix) :].replace(os.sep, "/") for path in _walk(str(folder), images_only))


def count_images(folder: Path) -> int:
    """Returns the number of image files in a folder itself, not below."""
    with os.scandir(folder) as entries:
        return sum(entry.is_file() and is_image(entry.name) for entry in entries)


def _walk(root: str, choose: Choose) -> Iterator[str]:
    seen: set[str] = set()  # real paths of folders
    folders, links = deque([(root, os.path.realpath(root))]), deque[tuple[str, str]]()
    while folders or links:
        folder, real = folders.popleft() if folders else links.popleft()
        if real in seen:
            continue
        seen.add(real)
        names, files = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    names.append(entry.name)
                elif not entry.name.startswith("."):
                    files.append(entry.name)
        yield from (os.path.join(folder, name) for name in choose(files))
        for name in sorted(names):
            path = os.path.join(folder, name)
            target = os.path.realpath(path)
            if target == os.path.join(real, name):
                folders.append((path, target))
            elif not os.path.join(real, "").startswith(os.path.join(target, "")):  # the link leads to a folder above
                links.append((path, target))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and not entry.name.startswith(".")
    except OSError:  # a link to itself
        return False
