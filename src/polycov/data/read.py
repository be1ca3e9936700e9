"""From the one argument ``--data`` to pictures in parts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polycov.data.hugging_face import read_hugging_face
from polycov.data.images import ImageData, check, hold_out, join
from polycov.data.layouts import read_aircraft, read_cars, read_cub, read_folders
from polycov.data.tars import read_tars
from polycov.data.typefaces import read_typefaces
from polycov.errors import PolycovError, known

BUILT_IN: dict[str, Callable[[], ImageData]] = {"typefaces": read_typefaces}
# Each looks at a folder and returns None if it is not laid out so.
LAYOUTS: list[Callable[[Path], ImageData | None]] = [read_cub, read_aircraft, read_cars, read_folders, read_tars]
STREAMS = ("hfds/", "hfids/", "wds/", "tfds/", "torch/")


def read_data(
    data: str | Path,
    *,
    val_fraction: float = 0.2,
    test_fraction: float = 0.3,
    split_seed: int = 0,
    val_seed: int | None = None,
) -> ImageData:
    """Reads pictures with classes.

    Args:
        data: a built-in name (``typefaces``); a folder: CUB-200-2011, FGVC-Aircraft or Stanford Cars as published,
            class folders below ``train`` and ``test`` (or ``val``), class folders alone, or tar shards;
            ``hfds/NAME`` for a data set of the Hugging Face hub or on disk; ``wds/FOLDER`` for webdataset shards.
        val_fraction: the part of the training pictures held out for validation, where the data have no validation
            part of their own besides a test part. 0 for none: then a part of their own is trained on too.
        test_fraction: the part held out for the test where the data have no test part.
        split_seed: of what is held out.
        val_seed: of what is held out for validation alone, if it is to be another.

    Raises:
        PolycovError: if there is nothing there, or nothing that one could learn from.
    """
    for name, seed in (("split_seed", split_seed), ("val_seed", val_seed or 0)):
        if not 0 <= seed < 2**63:
            raise PolycovError(f"Expected {name} from 0 to 2⁶³ − 1, got {seed}.")
    for name, value in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= value < 1:
            raise PolycovError(f"Expected {name} from 0 to below 1, got {value}.")
    found = find_data(data)
    parts = {part: samples for part, samples in found.parts.items() if len(samples)}
    notes = list(found.notes)
    if "train" not in parts:
        raise PolycovError(f"There are no training pictures in {str(data)!r}; it has {', '.join(parts) or 'nothing'}.")
    if "test" not in parts and "val" in parts:  # as ImageNet is published: what is called val is what is measured
        parts["test"] = parts.pop("val")
        notes.append("the part called val is taken as the test part")
    if "test" not in parts:
        if not test_fraction:
            raise PolycovError(f"{str(data)!r} has no test part: expected test_fraction above 0.")
        parts["train"], parts["test"] = hold_out(parts["train"], test_fraction, split_seed)
        notes.append(f"{test_fraction:.0%} of each class held out for the test, seed {split_seed}")
    if "val" in parts and not val_fraction:
        parts["train"] = join([parts["train"], parts.pop("val")])
        notes.append("the validation part is trained on too")
    if "val" not in parts:
        chosen = split_seed if val_seed is None else val_seed
        parts["train"], parts["val"] = hold_out(parts["train"], val_fraction, chosen)
        if val_fraction:
            notes.append(f"{val_fraction:.0%} of training held out for validation, seed {chosen}")
    order = {part: parts[part] for part in ("train", "val", "test")}
    return check(replace(found, parts=order, notes=notes))


def find_data(data: str | Path) -> ImageData:
    """Reads pictures in the parts that the data come in, whichever those are; arguments and errors as `read_data`."""
    data = str(data)
    if data in BUILT_IN:
        return BUILT_IN[data]()
    prefix = next((p for p in STREAMS if data.startswith(p)), None)
    if prefix in ("hfds/", "hfids/"):
        return read_hugging_face(data[len(prefix) :])
    if prefix in ("tfds/", "torch/"):
        raise PolycovError(f"{prefix[:-1]} data cannot be read by number. Write {data!r} to class folders first.")
    root = Path(data[len(prefix) :] if prefix else data).expanduser()
    if not root.exists():
        hint = known(data, BUILT_IN) if "/" not in data else "Also known: " + ", ".join([*BUILT_IN, "hfds/…", "wds/…"])
        raise PolycovError(f"There is no folder {str(root)!r}. {hint}")
    for read in [read_tars] if prefix else LAYOUTS:
        found = read(root)
        if found is not None:
            return found
    if root.is_file():
        raise PolycovError(f"Expected a folder of class folders, got the file {str(root)!r}.")
    raise PolycovError(
        f"There are no class folders with pictures in {str(root)!r}. Expected {root.name}/CLASS/*.jpg, or "
        f"{root.name}/train/CLASS/*.jpg and {root.name}/test/CLASS/*.jpg."
    )
