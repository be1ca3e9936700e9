"""The matrix of damaged files: exit code 2 and a sentence that names the file, or the file is made again.

Nothing else changes, and no exception leaves a command.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from command_line import COMPARE, FROZEN, PROBE, SMALL, run, succeed
from damages import BYTES, CONTENT, FLIPS, JSON, LINES, LINKS, TENSORS, TEXTS, WRONG, Damage, snapshot
from fake_images import write_data
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each folder that polycov writes."""
    root = tmp_path_factory.mktemp("house")
    trees = write_data(root / "trees", train=4, test=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYCOV_CACHE", str(root / "cache"))
        succeed("train", trees, "-o", root / "run", *PROBE)
        patch.setenv("POLYCOV_CACHE", str(root / "other cache"))
        with patch.context() as killed:
            killed.setattr(RunFolder, "finish", lambda *_, **__: exec("raise KeyboardInterrupt"))
            assert run("train", trees, "-o", root / "half", *FROZEN)[0] == 130
        for kind in ("npz", "parquet"):
            places = {"": str(root / kind), "trees": str(trees)}
            succeed(*(_filled(word, places) for word in EMBED[kind]))
        succeed("compare", trees, "-o", root / "cmp", *COMPARE)
        succeed("export", root / "run", "-o", root / "onnx" / "model.onnx")
    return root


@dataclass(frozen=True)
class Damaged:
    """A file in one of the folders, the ways to damage it, and the command that finds out.

    Attributes:
        folder: that is copied for the test.
        file: in it; a pattern whose first match is meant.
        damages: by name.
        command: with ``{}`` for the copy of the folder, and ``{trees}`` and ``{new}`` for images and a new folder.
        repaired: whether the command makes the file again, rather than refuse it.
        harmless: damages after which the command succeeds: the file is not needed, or says the same.
        late: whether the file is read after others have changed.
        says: what the sentence may say instead of the name of the file.
    """

    folder: str
    file: str
    damages: dict[str, Damage]
    command: list[str]
    repaired: bool = False
    harmless: tuple[str, ...] = field(default=())
    late: bool = False
    says: str = "\n"


PREDICT = ["predict", "{}", "{trees}/test/ash/004.jpg"]
RESUME = ["train", "--resume", "{}"]
REPORT = ["report", "{}", "-o", "{new}"]
EMBED = {
    kind: ["embed", "average", "{trees}/test", "-o", "{}", "--format", kind, "--shard-size", "3", *SMALL]
    for kind in ("npz", "parquet")
}
AGAIN = ["train", "{trees}", "-o", "{new}", *PROBE]

FILES = [
    Damaged("run", "config.json", JSON, PREDICT),
    Damaged("run", "config.json", JSON, RESUME),
    Damaged("run", "model.safetensors", TENSORS, PREDICT, says="not finished"),
    Damaged("run", "metrics.jsonl", JSON | LINES, RESUME),
    Damaged("half", "config.json", JSON, RESUME),
    Damaged("half", "checkpoint.safetensors", TENSORS, RESUME),
    Damaged("half", "best.safetensors", TENSORS, RESUME, late=True),
    Damaged("half", "metrics.jsonl", LINES, RESUME, harmless=("zeros", "garbage")),
    Damaged("cmp", "config.json", JSON, REPORT),
    Damaged("cmp", "records.jsonl", JSON | LINES, REPORT, harmless=("cut",)),  # as after a kill: one record less
    Damaged("cmp", "splits/0.json", JSON, REPORT),
    Damaged("cmp", "features.json", JSON, REPORT),
    Damaged("cmp", "storage.json", JSON, REPORT),
    Damaged("cmp", "gallery.json", JSON, REPORT),
    Damaged("npz", "_embedding.json", JSON, EMBED["npz"]),
    Damaged("npz", "_images.jsonl", BYTES | LINES, EMBED["npz"]),
    Damaged("npz", "part-000001.npz", CONTENT | LINKS | FLIPS, EMBED["npz"], repaired=True),
    Damaged("parquet", "part-000001.parquet", CONTENT | LINKS | FLIPS, EMBED["parquet"], repaired=True),
    Damaged("onnx", "model.onnx", BYTES, ["predict", "{}/model.onnx", "{trees}/test/ash/004.jpg"]),
    Damaged("cache", "features/*/shard-000000.npy", CONTENT | LINKS | FLIPS, AGAIN, repaired=True),
    Damaged("cache", "features/*/index.jsonl", LINES, AGAIN, repaired=True),
    Damaged("cache", "features/*/identity.json", CONTENT | TEXTS, AGAIN, repaired=True),
    Damaged("cache", "checked/*.json", CONTENT | TEXTS, AGAIN, repaired=True),
]
CASES = [
    pytest.param(place, name, id=f"{place.command[0]}-{place.folder}/{place.file}-{name}")
    for place in FILES
    for name in place.damages
]


@pytest.mark.parametrize(("place", "name"), CASES)
def test_a_damaged_file_is_named_or_made_again(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Damaged, name: str
) -> None:
    folder = tmp_path / place.folder
    shutil.copytree(house / place.folder, folder)
    shutil.copytree(house / "cache", tmp_path / "cache", dirs_exist_ok=True)
    path = next(folder.glob(place.file))
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))
    good = values(folder)
    place.damages[name](path)
    before = snapshot(folder)
    places = {"": str(folder), "trees": str(house / "trees"), "new": str(tmp_path / "new")}
    code, text = run(*(_filled(word, places) for word in place.command))
    if place.repaired or name in place.harmless:
        assert code == 0, text
        assert not place.repaired or values(folder) == good
    else:
        assert code == 2, text
        assert path.name in text or place.says in text.strip()
        assert len(text.strip().splitlines()) == 1
        assert place.late or snapshot(folder) == before


KEYS = ("format", "model", "classes", "preprocessing", "weights", "config", "data", "feature", "result", "license")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_in_a_description_is_refused_or_not_needed(
    house: Path, tmp_path: Path, key: str, wrong: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(house / "run", folder)
    description = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(description | {key: WRONG[wrong]}))
    code, text = run("predict", folder, house / "trees" / "test" / "ash" / "004.jpg")
    assert code in (0, 2), text
    assert code == 0 or "config.json" in text or "is not finished" in text


def values(folder: Path) -> Any:
    """What a folder holds: of an embedding names and features, of others all bytes."""
    if (folder / "_embedding.json").is_file():
        return [(shard.names, shard.values().tolist()) for shard in EmbeddingFolder(folder).shards()]
    return snapshot(folder)


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(f"{{{name}}}", value)
    return word
