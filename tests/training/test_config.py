import json
from pathlib import Path

import pytest

from polycov.errors import PolycovError
from polycov.system.structure import structure
from polycov.training.config import Config, TrainOptions, read_recipe
from polycov.training.recipes import FOLDER

RECIPES = sorted(FOLDER.glob("*.toml"))


def test_a_configuration_survives_json() -> None:
    config = Config(training=TrainOptions(milestones=(3, 5), init=Path("runs/x"), lr=1))
    assert structure(Config, json.loads(json.dumps(config.to_dict())), "config.json") == config


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_says_its_command_and_what_to_expect(path: Path) -> None:
    read_recipe(path).check()
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(head)
    assert f"--recipe {path.stem}" in text
    assert "Expect" in text
    assert "We chose" in text


def test_recipes_of_the_paper_have_its_numbers() -> None:
    names = {path.stem for path in RECIPES}
    for data in ("cub", "aircraft", "cars"):
        for backbone in ("resnet50", "resnet101"):
            config = read_recipe(next(path for path in RECIPES if path.stem == f"{data}-{backbone}"))
            t = config.training
            assert (t.optimizer, t.momentum, t.batch_size, t.epochs) == ("momentum", 0.9, 10, 100)
            assert (t.backbone_lr, t.lr, t.weight_decay) == (1.2e-3, 6e-3, 1e-3)
            assert (config.images.size, t.flip, config.network.last_stride) == (448, True, False)
            assert config.network.backbone == backbone
            assert config.images.squash  # both sides
            assert config.images.resize == (512 if data == "aircraft" else 448)
            assert t.mirror
    config = read_recipe(next(path for path in RECIPES if path.stem == "imagenet-resnet50"))
    t = config.training
    assert (t.batch_size, t.epochs, t.lr, t.backbone_lr, t.weight_decay) == (160, 65, 0.1, 0.1, 1e-4)
    assert (t.schedule, t.milestones, config.pooling.pool) == ("step", (30, 45, 60), "isqrt-cov")
    assert "cpu" in names


TABLE_2 = {  # of the paper: CUB, Aircraft, Cars with ResNet-50, then with ResNet-101
    "isqrt-cov": "87.96±0.03 90.69±0.08 93.62±0.03 88.08±0.07 92.05±0.07 93.96±0.05",
    "monet-2-ts": "87.32±0.17 90.87±0.08 93.97±0.04 87.92±0.10 91.64±0.10 94.25±0.04",
    "monet-2-rm": "87.71±0.06 90.79±0.12 94.02±0.06 88.01±0.09 91.65±0.09 94.12±0.05",
    "ipccp-ts": "87.93±0.07 90.52±0.08 93.73±0.07 88.43±0.08 91.73±0.09 94.24±0.04",
    "ipccp-rm": "87.88±0.06 90.44±0.07 93.76±0.03 88.36±0.06 91.64±0.08 94.08±0.04",
}


@pytest.mark.parametrize("method", TABLE_2)
def test_recipes_expect_the_accuracies_of_the_paper(method: str) -> None:
    names = [f"{data}-resnet{depth}" for depth in (50, 101) for data in ("cub", "aircraft", "cars")]
    for name, value in zip(names, TABLE_2[method].split(), strict=True):
        lines = (RECIPES[0].parent / f"{name}.toml").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("#   ") and f"--pool {method}" in line]
        assert value.replace("±", " ± ") in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainin]\nlr = 1", "Unknown option 'trainin' in r.toml. .*Did you mean 'training'"),
        ("[training]\nlearning_rate = 1", "Unknown option 'training.learning_rate' in r.toml. .*Known: .*lr"),
        ("[training]\nlr = 'big'", "Option 'training.lr' in r.toml should be a valid number, got 'big'"),
        ("[training]\nepochs = 1.5", "Option 'training.epochs' in r.toml should be a valid integer.*, got 1.5"),
        ("[training]\nfreeze = 1", "Option 'training.freeze' in r.toml should be a valid boolean, got 1"),
        ("[training]\nschedule = 'linear'", "'training.schedule' in r.toml should be 'cosine', 'step' or 'constant'"),
        ("training = 3", "Option 'training' in r.toml should be .*, got 3"),
        ("[training", "Cannot read the recipe"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(PolycovError, match=message):
        read_recipe(tmp_path / "r.toml")


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match="There is no recipe"):
        read_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs to be at least 1, got 0"),
        ({"lr": 0.0}, "lr to be a positive number, got 0.0"),
        ({"lr": float("nan")}, "lr to be a positive number, got nan"),
        ({"weight_decay": -1.0}, "weight_decay to be 0 or more"),
        ({"momentum": 1.0}, "momentum from 0 to below 1"),
        ({"clip": -1.0}, "clip to be a positive number"),
        ({"schedule": "step"}, "needs milestones"),
    ],
)
def test_numbers_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        Config(training=TrainOptions(**options)).check()  # type: ignore[arg-type]


def test_options_are_replaced_by_name_whatever_their_group() -> None:
    config = Config().replace(pool="isqrt-cov", epochs=3, size=224, data="folder", device="cpu")
    assert (config.pooling.pool, config.training.epochs, config.images.size) == ("isqrt-cov", 3, 224)
    assert (config.data, config.runtime.device) == ("folder", "cpu")
    with pytest.raises(PolycovError, match=r"Unknown option 'epoch'.*Did you mean 'epochs'"):
        Config().replace(epoch=3)


def test_what_does_not_change_a_result_is_not_part_of_its_description() -> None:
    plain = Config().replace(device="cpu", workers=7, plugin="mine.py").to_dict()
    assert "runtime" not in plain
    assert "mine.py" not in json.dumps(plain)


def test_the_default_pool_is_the_one_measured_best_for_the_way_of_fitting() -> None:
    assert Config().check().pooling.pool == "ipccp-ts"
    assert Config().replace(freeze=True).check().pooling.pool == "ipccp-ts"
    assert Config().replace(probe=True).check().pooling.pool == "auto-fit"
    assert Config().replace(probe=True, pool="gem").check().pooling.pool == "gem"
