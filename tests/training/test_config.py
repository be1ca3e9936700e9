import json
from pathlib import Path

import pytest

from polycov.errors import PolycovError
from polycov.training.config import Config, TrainOptions, from_dict, read_recipe
from polycov.training.loop import rate

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_a_configuration_survives_json() -> None:
    config = Config(training=TrainOptions(milestones=(3, 5), init=Path("runs/x"), lr=1))
    assert from_dict(json.loads(json.dumps(config.to_dict())), "config.json") == config


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_says_its_command_and_what_to_expect(path: Path) -> None:
    read_recipe(path).check()
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(head)
    assert f"--recipe recipes/{path.name}" in text
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
            assert (config.data.size, config.data.flip, config.model.last_stride) == (448, True, False)
            assert config.model.backbone == backbone
    config = read_recipe(next(path for path in RECIPES if path.stem == "imagenet-resnet50"))
    t = config.training
    assert (t.batch_size, t.epochs, t.lr, t.backbone_lr, t.weight_decay) == (160, 65, 0.1, 0.1, 1e-4)
    assert (t.schedule, t.milestones, config.model.pool) == ("step", (30, 45, 60), "isqrt-cov")
    assert "cpu" in names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainin]\nlr = 1", "Unknown section 'trainin' in r.toml. .*Did you mean 'training'"),
        ("[training]\nlearning_rate = 1", "Unknown 'learning_rate' in 'training' of r.toml"),
        ("[training]\nlr = 'big'", "Expected 'lr' in 'training' of r.toml to be float, got 'big'"),
        ("[training]\nepochs = 1.5", "Expected 'epochs' in 'training' of r.toml to be int, got 1.5"),
        ("[training]\nfreeze = 1", "Expected 'freeze' .* to be bool, got 1"),
        ("[training]\nschedule = 'linear'", r"Expected 'schedule' .* to be Literal\['cosine', 'step', 'constant'\]"),
        ("training = 3", "Expected 'training' in r.toml to be a section, got 3"),
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


def test_the_rate_warms_up_and_falls() -> None:
    options = TrainOptions(epochs=11, warmup=1)
    assert [rate(options, t) for t in (0, 0.5, 1, 6, 11)] == [0, 0.5, 1, 0.5, 0]
    steps = TrainOptions(schedule="step", milestones=(30, 45, 60))
    assert [rate(steps, t) for t in (0, 29.9, 30, 45, 64)] == [1, 1, 0.1, 0.01, 0.001]
