from pathlib import Path

import pytest

from polycov.comparing.options import CompareOptions
from polycov.errors import PolycovError
from polycov.training.config import read_recipe
from polycov.training.recipes import FOLDER, find_recipe, list_recipes


def test_a_recipe_of_the_package_is_found_by_its_name_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_recipe(Path("cub-resnet50")) == read_recipe(FOLDER / "cub-resnet50.toml")
    assert read_recipe(Path("cub-resnet50")).network.backbone == "resnet50"
    assert CompareOptions(recipe=Path("cpu"), head="finetune").command().endswith("--recipe cpu")


def test_a_file_of_the_same_name_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu").write_text("[training]\nepochs = 3\n")
    assert find_recipe(Path("cpu")) == Path("cpu")
    assert read_recipe(Path("cpu")).training.epochs == 3


@pytest.mark.parametrize("name", ["cub-resnet", "recipes/cub-resnet50", "cub-resnet50.toml"])
def test_an_unknown_name_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(
        PolycovError, match=f"There is no recipe '{name}', as a file or by name. Did you mean 'cub-resnet"
    ):
        find_recipe(Path(name))
    assert name not in list_recipes()
