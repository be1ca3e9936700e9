"""The walk over image files in folders."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from polycov.data.image_files import image_extensions
from polycov.errors import PolycovError


def iterate_images(paths: Iterable[Path]) -> Iterator[str]:
    """Yields image files one by one, without a list of all of them in memory.

    The images of each folder come sorted by name, those of its folders after its own. Files given by name are always
    yielded, in the order given. In folders, hidden files and folders are skipped. Linked folders
    are followed, each once and after all others, unless they lie above the link.

    Raises:
        PolycovError: if a path does not exist.
        OSError: if a folder cannot be read.
    """
    extensions = image_extensions()
    for path in paths:
        if not path.exists():
            raise PolycovError(f"There is no file or folder {str(path)!r}.")
        if path.is_dir():
            yield from _walk(str(path), extensions)
        else:
            yield str(path)


def list_images(folder: Path) -> list[str]:
    """Returns the image files in a folder and below, sorted, as paths relative to it with forward slashes.

    Raises:
        OSError: if a folder cannot be read.
    """
    prefix = os.path.join(folder, "")
    return sorted(path[len(prefix) :].replace(os.sep, "/") for path in _walk(str(folder), image_extensions()))


def count_images(folder: Path) -> int:
    """Returns the number of image files in a folder itself, not below."""
    extensions = image_extensions()
    with os.scandir(folder) as entries:
        return sum(entry.is_file() and _is_image(entry, extensions) for entry in entries)


def _walk(root: str, extensions: tuple[str, ...]) -> Iterator[str]:
    seen: set[str] = set()  # real paths of folders
    folders, links = deque([(root, os.path.realpath(root))]), deque[tuple[str, str]]()
    while folders or links:
        folder, real = folders.popleft() if folders else links.popleft()
        if real in seen:
            continue
        seen.add(real)
        names, images = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    names.append(entry.name)
                elif _is_image(entry, extensions):
                    images.append(entry.name)
        yield from (os.path.join(folder, name) for name in sorted(images))
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


def _is_image(entry: os.DirEntry[str], extensions: tuple[str, ...]) -> bool:
    return entry.name.lower().endswith(extensions) and not entry.name.startswith(".")
