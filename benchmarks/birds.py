"""Makes the 46 birds of the documentation, FOLDER in its commands, from Caltech-UCSD Birds 200-2011.

    python benchmarks/birds.py CUB_200_2011 FOLDER

CUB_200_2011 is the unpacked dataset. All its sparrows and warblers, classes 113 to 133 and 158 to 182, in the official
split; images whose shorter side is above 320 pixels are reduced to that.
"""

import sys
from pathlib import Path

from PIL import Image

CLASSES = {*range(113, 134), *range(158, 183)}  # sparrows and warblers
SIDE = 320  # pixels


def table(path: Path) -> dict[str, str]:
    """Returns a list of the dataset: what follows each number."""
    return dict(line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines())


def main(dataset: Path, folder: Path) -> None:
    """Writes FOLDER/train/CLASS and FOLDER/test/CLASS."""
    names, trained = table(dataset / "images.txt"), table(dataset / "train_test_split.txt")
    counts = {"train": 0, "test": 0}
    for number, name in names.items():
        if int(name.partition(".")[0]) not in CLASSES:
            continue
        split = "train" if trained[number] == "1" else "test"
        with Image.open(dataset / "images" / name) as file:
            image = file.convert("RGB")
        if min(image.size) > SIDE:
            scale = SIDE / min(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        target = folder / split / name
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target, quality=90)
        counts[split] += 1
    print(f"{counts['train']} images for training, {counts['test']} for the test")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
