import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from polycov import PolycovError
from polycov.models.weights import load_exactly, offline_weights, read_weights, rename_in_order


def test_tensors_come_back_from_either_kind_of_file(tmp_path: Path) -> None:
    state = nn.Linear(3, 2).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, tmp_path / "c.pth")
    torch.save({"model": state}, tmp_path / "d.pth")
    for name in ("a.safetensors", "b.pth", "c.pth", "d.pth"):
        loaded = read_weights(tmp_path / name)
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[key], state[key]) for key in state)


class Trap:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return (Path("trapped").touch, ())


def test_code_in_a_file_is_refused_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Trap()}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Trap()))
    for name in ("a.pth", "b.pth"):
        with pytest.raises(PolycovError, match="Cannot read weights from"):
            read_weights(tmp_path / name)
    assert not (tmp_path / "trapped").exists()


def test_wrong_files_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="There is no weights file"):
        read_weights(tmp_path / "none.pth")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(PolycovError, match="Cannot read weights"):
        read_weights(tmp_path / "text.safetensors")
    (tmp_path / "cut.pth").write_bytes(b"")  # for which torch raises an error without a text
    with pytest.raises(PolycovError, match=r"^Cannot read weights from '.*cut\.pth': EOFError\.$"):
        read_weights(tmp_path / "cut.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(PolycovError, match=r"Expected tensors by name in .*, got a list"):
        read_weights(tmp_path / "list.pth")


def test_names_that_do_not_fit_are_listed_and_nothing_changes() -> None:
    layer = nn.Linear(3, 2)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    wrong = {"weight": torch.zeros(2, 4), "scale": torch.zeros(1)}
    with pytest.raises(
        PolycovError, match=r"bias is missing; scale is not in the model; weight is \(2, 4\), not \(2, 3\)"
    ):
        load_exactly(layer, wrong, "The file 'x'")
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    load_exactly(layer, {"weight": torch.ones(2, 3), "bias": torch.ones(2), "fc.weight": torch.ones(1)}, "x", ("fc.",))
    assert layer.weight.sum() == 6


def test_renaming_in_order_compares_shapes() -> None:
    layer = nn.Linear(3, 2)
    renamed = rename_in_order({"w": torch.zeros(2, 3), "b": torch.zeros(2), "head": torch.zeros(9)}, layer, "x")
    assert list(renamed) == ["weight", "bias"]
    with pytest.raises(PolycovError, match="does not fit"):
        rename_in_order({"b": torch.zeros(2), "w": torch.zeros(2, 3)}, layer, "x")
    with pytest.raises(PolycovError, match="too few tensors"):
        rename_in_order({"w": torch.zeros(2, 3)}, layer, "x")


def test_a_missing_wheel_gives_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    path = offline_weights()
    assert path is not None
    assert path.is_file()
    monkeypatch.setattr("polycov.models.weights.find_spec", lambda _: None)
    assert offline_weights() is None
