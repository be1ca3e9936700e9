"""Makes a folder of 12 classes of textures from three packages of Debian, whose licences allow it.

    apt-get download nexuiz-textures openarena-081-textures ufoai-textures
    for package in *.deb; do dpkg-deb -x $package packages; done
    python benchmarks/textures.py packages textures
    polycov compare textures --methods average average-last gem isqrt-cov mean-cov auto-fit --dims 256 512 --seeds 10

A texture belongs to a class if one of its words is in the name of the file, and none of another class. Maps of normals
and gloss are left out, and so is what looks like an earlier texture. A third of each class is for the test; every
texture is one image, its central square.
"""

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from zlib import crc32

from PIL import Image, UnidentifiedImageError

CLASSES = {
    "brick": "brick|brck",
    "carpet": "carpet|cloth|fabric|rug|curtain",
    "concrete": "concrete|cement|asphalt|street|road",
    "door": "door",
    "grate": "grate|grid|mesh|fence|pipe",
    "ground": "dirt|mud|sand|gravel|soil|ground|earth|grass|leaves|moss",
    "metal": "metal|steel|iron|mtl|rust",
    "plaster": "plaster|stucco|wallpaper|paint",
    "rock": "rock|stone|cliff|cobble|marble",
    "tile": "tile",
    "water": "water|ice|snow|lava",
    "wood": "wood|bark|plank|board",
}
OTHER = "roof|shingle|glass|window|trim|light|lamp|floor|flr"  # words of textures that belong to none of the classes
NO_PHOTO = re.compile(r"_(norm|gloss|nm|sm|gm|rm|bump|glow|spec|local|n|s|h|blend|pants|shirt|luma)$")
LEAST_SIDE, LEAST_SPREAD, MOST = 128, 6.0, 120  # pixels; grey levels; images per class


def class_of(name: str) -> str | None:
    """Returns the class that the name of a texture speaks of, or None if it is none or several."""
    if NO_PHOTO.search(name) or re.search(OTHER, name):
        return None
    found = [label for label, words in CLASSES.items() if re.search(words, name)]
    return found[0] if len(found) == 1 else None


def textures(packages: Path) -> Iterator[tuple[str, Image.Image]]:
    """Yields the class and the central square of every texture, in the order of archives and names."""
    for archive in sorted(packages.rglob("*.pk3")):
        with zipfile.ZipFile(archive) as files:
            for path in sorted(files.namelist()):
                label = class_of(PurePosixPath(path).stem.lower())
                if label is None or PurePosixPath(path).suffix not in (".jpg", ".png", ".tga"):
                    continue
                try:
                    image = Image.open(io.BytesIO(files.read(path))).convert("RGBA").convert("RGB")
                except (UnidentifiedImageError, OSError):
                    continue
                side = min(image.size)
                if side >= LEAST_SIDE:
                    left, top = (image.width - side) // 2, (image.height - side) // 2
                    yield label, image.crop((left, top, left + side, top + side))


def look(image: Image.Image) -> tuple[bytes, float]:
    """Returns a coarse picture, equal for textures that look the same, and its standard deviation."""
    pixels = image.resize((16, 16), Image.Resampling.BOX).tobytes()
    mean = sum(pixels) / len(pixels)
    return bytes(value // 16 for value in pixels), (sum((value - mean) ** 2 for value in pixels) / len(pixels)) ** 0.5


def main(packages: Path, folder: Path) -> None:
    """Writes FOLDER/train/CLASS and FOLDER/test/CLASS."""
    seen: set[bytes] = set()
    counts = dict.fromkeys(CLASSES, 0)
    found = []
    for label, image in textures(packages):
        coarse, spread = look(image)
        if coarse not in seen and spread >= LEAST_SPREAD:
            seen.add(coarse)
            found.append((crc32(coarse), label, image.resize((320, 320), Image.Resampling.BICUBIC)))
    for _, label, image in sorted(found, key=lambda item: item[:2]):  # in an order that has nothing to do with names
        if counts[label] < MOST:
            target = folder / ("test" if counts[label] % 3 == 0 else "train") / label / f"{counts[label]:03d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            image.save(target, quality=92)
            counts[label] += 1
    print(", ".join(f"{label} {count}" for label, count in counts.items()), f"in all {sum(counts.values())}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
