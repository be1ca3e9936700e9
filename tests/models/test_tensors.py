import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from polycov import PolycovError
from polycov.errors import MissingDependencyError
from polycov.models.tensors import digest, load_tensors, read_notes, save_tensors


def test_tensors_and_notes_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3).mT, "b": torch.tensor(True), "c": torch.zeros(0, dtype=torch.float16)}
    save_tensors(tmp_path / "x", tensors, {"epoch": 3, "sums": [0.1, 2.0]})
    loaded, notes = load_tensors(tmp_path / "x")
    assert notes == read_notes(tmp_path / "x") == {"epoch": 3, "sums": [0.1, 2.0]}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_broken_missing_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(PolycovError, match="There is no file"):
        load_tensors(path)
    save_tensors(path, {"a": torch.ones(20)}, {})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PolycovError, match="Cannot read"):
        load_tensors(path)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(PolycovError, match="polycov did not write this file"):
        load_tensors(path)
    save_file({"a": torch.ones(2)}, path, {"polycov": "{"})
    with pytest.raises(PolycovError, match="Cannot read"):
        read_notes(path)


@pytest.mark.parametrize("place", [-1, -40, -80])
def test_a_changed_byte_is_found(tmp_path: Path, place: int) -> None:
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.ones(20), "b": torch.zeros(0, dtype=torch.bfloat16)}, {"epoch": 3})
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(PolycovError, match=r"x\.safetensors': it is damaged, its checksum is another\.$"):
        load_tensors(path)


def test_files_of_older_versions_have_no_checksum(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x", {"polycov": '{"epoch": 3}'})
    assert load_tensors(tmp_path / "x")[1] == {"epoch": 3}


def test_notes_that_json_cannot_hold_leave_the_old_file(tmp_path: Path) -> None:
    save_tensors(tmp_path / "x", {"a": torch.ones(2)}, {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_tensors(tmp_path / "x", {"a": torch.zeros(2)}, {"a": torch.zeros(2)})
    assert load_tensors(tmp_path / "x")[0]["a"].tolist() == [1, 1]


def test_a_digest_depends_on_names_and_values_not_on_layout() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert digest({"a": x}) == digest({"a": x.mT.contiguous().mT})
    others = [{"b": x}, {"a": x + 1}, {"a": x.double()}, {"a": x, "b": x}, {}]
    assert len({digest(tensors) for tensors in [{"a": x}, *others]}) == 6


def test_a_missing_safetensors_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'polycov\[train\]'"):
        load_tensors(tmp_path / "x")
