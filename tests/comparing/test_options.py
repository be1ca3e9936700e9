import shlex
from pathlib import Path

import pytest

from polycov.commands.parsing import parse
from polycov.comparing.options import CompareOptions
from polycov.errors import PolycovError
from polycov.training.config import Config, replace_options


def test_the_command_of_a_comparison_is_what_was_asked_for() -> None:
    changes = {"methods": ("gem", "covariance | sqrt(3) | triu"), "seeds": 2, "size": 224, "last_stride": False}
    options = replace_options(CompareOptions("my birds"), {**changes, "broken": "skip"})
    words = shlex.split(options.command())
    assert words[:3] == ["polycov", "compare", "my birds"]
    parsed = parse(CompareOptions, "compare", words[2:], positional={"data": "DATA"}, lists=("methods", "dims"))
    assert parsed == options
    assert CompareOptions().command() == "polycov compare typefaces"


def test_the_command_that_trains_has_the_options_of_the_comparison() -> None:
    changes = {"head": "finetune", "lr": 0.1, "store_channels": 8, "size": 224, "methods": ("gem",), "seeds": 2}
    options = replace_options(CompareOptions("my birds"), changes)
    words = options.train_command()
    assert words[:3] == ["polycov", "train", "my birds"]
    parsed = parse(Config, "train", words[2:], positional={"data": "DATA"})
    assert parsed == Config("my birds").replace(lr=0.1, store_channels=8, size=224)
    assert CompareOptions(epochs=3).train_command() == ["polycov", "train", "typefaces", "--probe"]


def test_a_recipe_gives_the_network_and_the_command_line_takes_precedence(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[network]\nbackbone = "resnet50"\nstage = "last"\n[split]\nval_fraction = 0.0\n[training]\nlr = 0.5\n'
    )
    options = replace_options(CompareOptions().with_recipe(recipe), {"head": "finetune", "epochs": 3})
    assert replace_options(options, {"lr": 0.1, "backbone_lr": 0.2}).config().training.backbone_lr == 0.2
    config = replace_options(options, {"stage": "auto"}).config()
    assert (config.network.backbone, config.network.stage) == ("resnet50", "auto")
    assert (config.training.lr, config.training.epochs, config.training.freeze) == (0.5, 3, False)
    assert config.split.val_fraction == 0.2  # a comparison chooses on validation
    assert config.pooling.channels == 256
    assert CompareOptions().config().pooling.channels == 128


@pytest.mark.parametrize("data", ["cub", "aircraft", "cars"])
@pytest.mark.parametrize("depth", [50, 101])
def test_recipes_of_the_paper_compare_the_grid_of_its_figures(data: str, depth: int) -> None:
    recipe = Path(f"{data}-resnet{depth}")
    options = CompareOptions().with_recipe(recipe)
    assert (options.head, options.seeds, options.split.val_fraction) == ("finetune", 10, 0.05)
    assert set(options.methods) == {"isqrt-cov", "monet-2-ts", "monet-2-rm", "ipccp-ts", "ipccp-rm"}
    assert options.dims == (512, 1024, 2048, 4096, 8192)
    config = options.config()
    assert (config.pooling.channels, config.training.mirror, config.training.epochs) == (256, True, 100)


def test_mistakes_in_the_table_compare_are_named(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[compare]\nseedss = 3\n")
    with pytest.raises(PolycovError, match="Unknown option 'seedss'"):
        CompareOptions().with_recipe(recipe)
    recipe.write_text("compare = 3\n")
    with pytest.raises(PolycovError, match=r"Expected a table \[compare\] in r.toml, got 3"):
        CompareOptions().with_recipe(recipe)


@pytest.mark.parametrize(("name", "value"), [("seeds", 0), ("jobs", 0), ("channels", -1), ("workers", -1)])
def test_values_that_make_no_sense(name: str, value: int) -> None:
    with pytest.raises(PolycovError, match=f"Expected {name} to be"):
        replace_options(CompareOptions(), {name: value}).config()


def test_every_option_survives_its_command() -> None:
    changes = {"squash": False, "stage": 2, "channels": 9, "val_seed": 3, "device": "cpu", "head": "train", "epochs": 2}
    options = replace_options(CompareOptions("x"), {**changes, "dims": [8, 4]})  # a list does too
    words = shlex.split(options.command())[2:]
    assert parse(CompareOptions, "compare", words, positional={"data": "DATA"}, lists=("methods", "dims")) == options
