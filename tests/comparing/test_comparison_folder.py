import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from polycov.comparing.comparison_folder import ComparisonFolder, default_path
from polycov.comparing.records import Measurement, Record
from polycov.errors import PolycovError

RECORD = Record(
    "ipccp-ts", 16, 0, "probe", Measurement("s", 8, 16, 64, 0.1, 0.5, 0.5, 2, "wA==", "wA=="), 1.0, 2, "cpu", {"a": "1"}
)
IDENTITY = {"head": "probe", "config": {"pooling": {"channels": 12}}, "images": ["a", "b"]}


@pytest.fixture
def folder(tmp_path: Path) -> ComparisonFolder:
    folder = ComparisonFolder(tmp_path / "cmp")
    folder.open(IDENTITY, {"data": "trees"})
    return folder


def test_records_come_back_each_once(folder: ComparisonFolder) -> None:
    folder.append(RECORD, {"val": [3, 4], "test": [0]})
    folder.append(replace(RECORD, seed=1), {"val": [5], "test": [0]})
    folder.append(replace(RECORD, seconds=2.0), {"val": [3, 4], "test": [0]})
    assert folder.records() == [replace(RECORD, seconds=2.0), replace(RECORD, seed=1)]
    assert folder.scored() == {0: {"val": [3, 4], "test": [0]}, 1: {"val": [5], "test": [0]}}


def test_records_of_another_comparison_are_refused(folder: ComparisonFolder) -> None:
    folder.append(RECORD, {})
    other = ComparisonFolder(folder.path.parent / "other")
    other.open({**IDENTITY, "head": "knn"}, {})
    os.rename(folder.path / "records.jsonl", other.path / "records.jsonl")
    with pytest.raises(PolycovError, match=r"line 1 of '.*records.jsonl' is a record of another comparison"):
        other.records()
    (other.path / "config.json").unlink()
    with pytest.raises(PolycovError, match=r"holds records, but no config\.json"):
        ComparisonFolder(other.path).open(IDENTITY, {})


def test_older_folders_list_validation_images_alone(folder: ComparisonFolder) -> None:
    folder.append(RECORD, {})
    (folder.path / "splits" / "0.json").write_text("[3, 4]")
    config = folder.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "counts": {"test": 2}}))
    assert folder.scored() == {0: {"val": [3, 4], "test": [0, 1]}}
    folder.append(replace(RECORD, seed=1), {"val": [3, 5], "test": [7, 8]})
    assert folder.scored()[0] == {"val": [3, 4], "test": [7, 8]}  # the same for all seeds


def test_another_comparison_or_version_is_refused(folder: ComparisonFolder) -> None:
    folder.open(IDENTITY, {})
    with pytest.raises(PolycovError, match="holds a comparison with channels 12, not 13"):
        folder.open({**IDENTITY, "config": {"pooling": {"channels": 13}}}, {})
    with pytest.raises(PolycovError, match="holds a comparison with other images"):
        folder.open({**IDENTITY, "images": ["a", "c"]}, {})
    config = folder.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "format": 1}))
    with pytest.raises(PolycovError, match="has format 1; expected 2"):
        folder.config()
    with pytest.raises(PolycovError, match="is not a comparison"):
        ComparisonFolder(folder.path.parent).config()


@pytest.mark.parametrize("line", ["{}", '{"method": 3}', "[1]", "nonsense"])
def test_a_damaged_record_is_named_with_its_line(folder: ComparisonFolder, line: str) -> None:
    folder.append(RECORD, {"val": [], "test": []})
    with (folder.path / "records.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PolycovError, match=r"[Ll]ine 2 of .*records\.jsonl"):
        folder.records()


def test_one_process_writes_to_the_folder(folder: ComparisonFolder) -> None:
    sentence = rf"{re.escape(str(folder.path))}' is being written by process {os.getpid()}\. Wait until it is done\."
    with folder.writing(), pytest.raises(PolycovError, match=sentence), ComparisonFolder(folder.path).writing():
        pass
    with folder.writing():
        pass
    assert not list(folder.path.glob("*.lock"))


def test_the_same_identity_has_the_same_folder() -> None:
    assert default_path("trees", IDENTITY) == default_path("trees", dict(reversed(IDENTITY.items())))
    assert default_path("trees", IDENTITY) != default_path("trees", {**IDENTITY, "head": "train"})
