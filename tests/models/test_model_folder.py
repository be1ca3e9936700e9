"""Models as folders: what does not belong together, or could run, is refused."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import polycov
from polycov.models.model_folder import ModelFolder


def description_in(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return description


def write_description(folder: Path, values: Any) -> None:
    (folder / "config.json").write_text(json.dumps(values))


def test_a_folder_carries_any_keys(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path / "a" / "b")
    tensors = {"weight": torch.arange(3.0)}
    folder.write({"classes": ["é", "b"], "extra": {"epochs": 3}}, tensors, card="Mine.")
    description, loaded = folder.read()
    assert description == folder.read_description()
    assert (description["classes"], description["extra"], description["format"]) == (["é", "b"], {"epochs": 3}, 2)
    assert torch.equal(loaded["weight"], tensors["weight"])
    assert folder.is_finished
    assert folder.size_in_bytes() == sum(path.stat().st_size for path in folder.path.iterdir())
    folder.write_description(description | {"extra": 4})  # as it was read: the weights still belong to it
    assert folder.read()[0]["extra"] == 4


def test_a_run_is_finished_when_its_weights_are_written(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    assert not folder.is_finished
    folder.write_description({"config": {"epochs": 3}})
    for _ in range(2):
        assert not folder.is_finished
        with pytest.raises(polycov.PolycovError, match=r"The run '.*' is not finished\. Resume it with: polycov train"):
            folder.read()
        folder.write_description({"config": {"epochs": 3}, "result": {}})
    folder.write_weights({"weight": torch.ones(2)})
    assert folder.is_finished
    assert folder.read()[0]["result"] == {}
    folder.weights.unlink()  # as after a kill between config.json and the weights
    assert not folder.is_finished
    with pytest.raises(polycov.PolycovError, match="is not finished"):
        folder.read()


def test_a_run_that_begins_beside_old_weights_is_not_finished(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    folder.write({"config": {}}, {"weight": torch.ones(2)})
    folder.write_description({"config": {}})
    assert not folder.is_finished
    with pytest.raises(polycov.PolycovError, match="is not finished"):
        folder.read()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_save_killed_half_way_never_pairs_two_models(
    saved: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = polycov.create_model("test_resnet", pool="gem", channels=12, num_classes=3, weights="none", size=64)
    other.classes = ["new", "names", "here"]
    replace, count = os.replace, 0

    def killed_after_some(*paths: Any) -> None:
        nonlocal count
        if count == writes:
            raise Killed
        count += 1
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed_after_some)
        with pytest.raises(Killed):
            other.save_pretrained(saved)
    with pytest.raises(polycov.PolycovError, match=r"no config\.json|does not belong to its config\.json"):
        polycov.Model.from_pretrained(saved)
    other.save_pretrained(saved)
    assert polycov.Model.from_pretrained(saved).classes == other.classes


def test_weights_of_another_model_are_refused(saved: Path, tmp_path: Path) -> None:
    other = polycov.Model.from_pretrained(saved)
    torch.nn.init.zeros_(other.classifier.weight)
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", saved)
    assert not ModelFolder(saved).is_finished
    with pytest.raises(polycov.PolycovError, match=r"model\.safetensors in .* does not belong to its config\.json"):
        polycov.Model.from_pretrained(saved)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pkl", "model.pt", "last.ckpt"])
def test_a_folder_with_a_pickle_is_refused_by_name(saved: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("a pickle was run",)

    (saved / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(polycov.PolycovError, match=rf"has '{name}', which may be a pickle"):
        polycov.Model.from_pretrained(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(polycov.PolycovError, match=rf"has '{name}', which may be a pickle"):
        polycov.Model.from_pretrained(saved)


def test_tensors_that_do_not_fit_are_refused_by_name(saved: Path) -> None:
    path = saved / "model.safetensors"
    tensors = load_file(path)
    notes = {"polycov": json.dumps({"format": 2, "digest": description_in(saved)["weights"]})}
    wrong = {
        r"classifier.weight is \(4, 8\), not \(3, 8\)": tensors | {"classifier.weight": torch.zeros(4, 8)},
        r"classifier\.bias is missing": {name: t for name, t in tensors.items() if name != "classifier.bias"},
        "more is not in the model": tensors | {"more": torch.zeros(1)},
        r"classifier.weight is torch.int8, not torch.float32": tensors
        | {"classifier.weight": torch.zeros(3, 8, dtype=torch.int8)},
        r"model\.safetensors in .* does not fit the model": tensors
        | {"pool.vector.order": tensors["pool.vector.order"] + 10**6},
    }
    for message, state in wrong.items():
        save_file(state, path, notes)
        with pytest.raises(polycov.PolycovError, match=message):
            polycov.Model.from_pretrained(saved)
    path.write_bytes(b"no tensors")
    with pytest.raises(polycov.PolycovError, match="Cannot read"):
        polycov.Model.from_pretrained(saved)
    path.unlink()
    with pytest.raises(polycov.PolycovError, match=r"There is no model\.safetensors in"):
        polycov.Model.from_pretrained(saved)


@pytest.mark.parametrize("version", [1, 99, None, "2"])
def test_another_format_is_refused_with_both_versions(saved: Path, version: object) -> None:
    write_description(saved, description_in(saved) | {"format": version})
    with pytest.raises(polycov.PolycovError, match=rf"has format {version!r}; expected 2: an? (newer|earlier) version"):
        polycov.Model.from_pretrained(saved)


def test_folders_that_are_no_models_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match=r"There is no folder '\./nowhere'"):
        polycov.Model.from_pretrained("./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(polycov.PolycovError, match=r"is neither a run nor a model: it has no config\.json"):
        polycov.Model.from_pretrained(tmp_path / "empty")
    for text in ("[" * 100_000, "{"):
        (saved / "config.json").write_text(text)
        with pytest.raises(polycov.PolycovError, match="Expected JSON"):
            polycov.Model.from_pretrained(saved)
    others: list[Any] = [{}, [], "text"]
    for values in others:
        write_description(saved, values)
        with pytest.raises(polycov.PolycovError, match=r"has format None; expected 2"):
            polycov.Model.from_pretrained(saved)


def test_descriptions_that_make_no_model_are_refused(saved: Path) -> None:
    description = description_in(saved)
    options = description["model"]
    huge = "covariance | sqrt(5) | count_sketch(999999999) | project(8)"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"classes": ["oak"]}, r"Expected model\.classes to be a list of 3 names"),
        ({"classes": "abc"}, r"Expected model\.classes to be a list of 3 names"),
        ({"preprocessing": description["preprocessing"] | {"mean": [None] * 3}}, "Cannot rebuild the model"),
        ({"preprocessing": None}, "Cannot rebuild the model"),
        ({"model": options | {"pool": huge}}, "999999999 is more than its tensors hold"),
        ({"model": options | {"channels": 2**30}}, f"{2**30} is more than its tensors hold"),
        ({"model": options | {"size": -1}}, "Cannot rebuild the model"),
        ({"model": options | {"backbone": ["test_resnet"]}}, "Expected the name of a backbone or a module, got list"),
        ({"model": options | {"weights": "mine.pth"}}, "Cannot rebuild the model"),
        ({"model": None}, "Cannot rebuild the model"),
    ]
    for change, message in wrong:
        write_description(saved, description | change)
        with pytest.raises(polycov.PolycovError, match=message):
            polycov.Model.from_pretrained(saved)


def test_a_card_is_that_of_the_model_beside_it(model: polycov.Model, saved: Path) -> None:
    other = polycov.create_model("test_resnet", pool="gem", channels=12, num_classes=2, weights="none", size=64)
    other.save_pretrained(saved)
    assert "`gem`" in (saved / "README.md").read_text(encoding="utf-8")
    (saved / "README.md").write_text("My own words.")
    model.save_pretrained(saved)
    assert (saved / "README.md").read_text() == "My own words."
