"""The commands as a user meets them: help, results, and one clear sentence for each mistake."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import polycov
from pictures import picture, write_classes, write_data
from polycov.commands.main import main
from polycov.training.config import Config, DataOptions, ModelOptions, TrainOptions
from polycov.training.experiment import train
from polycov.training.run_folder import load_run

SPEC = "covariance | sqrt(5) | tensor_sketch(32)"
TINY = ["--backbone", "test_resnet", "--weights", "none", "--size", "64", "--workers", "0"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=6, test=3)


@pytest.fixture(scope="module")
def finished(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "probe"
    config = Config(
        DataOptions(data=str(trees), size=64, workers=0),
        ModelOptions(backbone="test_resnet", weights="none", stage=2, dim=32, channels=8),
        TrainOptions(probe=True),
    )
    return train(config, folder, cache=folder.parent / "cache")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))


def fails(*arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return str(stopped.value.code)


COMMANDS = ["train", "evaluate", "predict", "embed", "export", "compare", "report", "list", "bench"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "usage: polycov" in out
    assert "STR STR" not in out


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "polycov", "list"], capture_output=True, text=True, check=True)
    assert "ipccp-ts" in done.stdout


def test_list_has_every_method_and_backbones_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    out = capsys.readouterr().out
    assert all(name in out for name in polycov.list_methods())
    main(["list", "backbones", "*lite0"])
    assert "tf_efficientnet_lite0 (offline)" in capsys.readouterr().out
    assert fails("list", "backbones", "nothing*") == (
        "polycov: No backbone fits 'nothing*'. Try a pattern such as 'resnet*'."
    )


MISTAKES = {
    "no data": (["train", "--data", "nowhere"], "There is no folder 'nowhere'"),
    "no recipe": (["train", "--recipe", "nowhere.toml"], "There is no recipe 'nowhere.toml'"),
    "no run to resume": (["train", "--resume", "nowhere"], "There is no file 'nowhere/config.json'"),
    "no backbone": (["train", "--data", "TREES", "--backbone", "resnet51"], "Unknown backbone 'resnet51'"),
    "no method": (["train", "--data", "TREES", *TINY, "--pool", "ipcp-ts"], "Did you mean 'ipccp-ts'"),
    "no free dim": (["train", "--data", "TREES", *TINY, "--pool", "isqrt-cov", "--dim", "9"], "'isqrt-cov' takes only"),
    "no weights": (["train", "--data", "TREES", "--weights", "none.pth"], "There is no weights file 'none.pth'"),
    "no stage": (["train", "--data", "TREES", *TINY, "--stage", "9"], "Expected a stage from 0 to"),
    "small pictures": (["train", "--data", "TREES", *TINY, "--size", "4"], "Expected size of pictures from 8"),
    "no epochs": (["train", "--data", "TREES", "--epochs", "0"], "Expected epochs to be at least 1, got 0"),
    "evaluate nothing": (["evaluate", "nowhere"], "There is no run 'nowhere'"),
    "evaluate no run": (["evaluate", "TREES"], "is neither a run nor a model: it has no config.json"),
    "predict nothing": (["predict", "RUN", "nowhere.jpg"], "There is no picture 'nowhere.jpg'"),
    "predict no picture": (["predict", "RUN"], "Expected pictures"),
    "embed nothing": (["embed", "ipccp-ts", "nowhere.jpg", *TINY], "There is no picture 'nowhere.jpg'"),
    "embed with no method": (["embed", "ipcp-ts", "TREES", *TINY], "Did you mean 'ipccp-ts'"),
    "embed unfitted": (["embed", "ipccp-fit", "TREES", *TINY, "--dim", "8"], "is not fitted"),
    "embed a run of its own size": (["embed", "RUN", "TREES", "--dim", "8"], "leave out --dim and --size"),
    "embed on no device": (["embed", "ipccp-ts", "TREES", "--device", "foo"], "The device 'foo' is not there"),
    "evaluate no batch": (["evaluate", "RUN", "--batch-size", "0"], "Expected batch_size to be at least 1"),
    "probe without validation": (
        ["train", "--data", "TREES", *TINY, "--probe", "--val-fraction", "0"],
        "--val-fraction",
    ),
    "embed into a file": (["embed", "ipccp-ts", "TREES", "-o", "x.parquet"], "--out is a folder of shards"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_sentence(
    mistake: str, trees: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    names = {"TREES": str(trees), "RUN": str(finished)}
    said = fails(*(names.get(argument, argument) for argument in arguments))
    assert said.startswith("polycov: ")
    assert message in said
    assert "\n" not in said


def test_an_option_that_is_not_there_is_refused_with_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("train", "--learning-rate", "1") == "2"
    assert "--learning-rate" in capsys.readouterr().err


def test_the_command_line_goes_before_the_recipe(trees: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[training]\nprobe = true\n[model]\nbackbone = "test_resnet"\nweights = "none"\nstage = 1\n')
    given = ["--recipe", str(recipe), "--data", str(trees), "--size", "64", "--stage", "2", "--dim", "16"]
    main(["train", *given, "--workers", "0", "--out", str(tmp_path / "run")])
    loaded = load_run(tmp_path / "run")
    assert loaded.model.backbone.stage == 2
    assert loaded.config.training.probe
    assert loaded.model.pool.out_features == 16


def test_evaluation_on_other_data_goes_by_the_names_of_classes(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "two", ["birch", "cedar"], 4)  # other numbers than in training
    main(["evaluate", str(finished), "--data", str(tmp_path / "two"), "--workers", "0"])
    assert "on 8 pictures of two" in capsys.readouterr().out
    found = json.loads((finished / "evaluation" / "evaluation.json").read_text())
    assert [row["class"] for row in found["classes"]] == ["birch", "cedar"]
    write_classes(tmp_path / "more", ["birch", "zelkova"], 2)
    said = fails("evaluate", finished, "--data", tmp_path / "more")
    assert "The run does not know 1 of the 2 classes: 'zelkova'. It knows 'ash', 'birch', 'cedar'." in said


def test_evaluation_leaves_out_broken_pictures(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "two", ["birch", "cedar"], 4)
    (tmp_path / "two" / "birch" / "text.jpg").write_text("no picture")
    arguments = ["evaluate", str(finished), "--data", str(tmp_path / "two"), "--workers", "0"]
    assert "1 of 9 pictures cannot be read" in fails(*arguments)
    main([*arguments, "--broken", "skip"])
    assert "on 8 pictures of two" in capsys.readouterr().out


def test_names_are_shown_as_they_are(trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path / "x", ["[red]", "[bold]q"], 8)
    given = ["--data", str(tmp_path / "x"), *TINY, "--stage", "2", "--dim", "8", "--probe"]
    main(["train", *given, "--out", str(tmp_path / "[bold]run")])
    main(["evaluate", str(tmp_path / "[bold]run"), "--workers", "0"])
    main(["predict", str(tmp_path / "[bold]run"), str(tmp_path / "x" / "[red]" / "000.jpg")])
    out = capsys.readouterr().out
    assert "[bold]run" in out
    assert "[red]" in out
    assert "[bold]q" in out


def test_prediction_names_what_it_cannot_read_and_goes_on(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    good = trees / "test" / "ash" / "006.jpg"
    said = fails("predict", finished, tmp_path / "text.jpg", good)
    assert said == "polycov: 1 of 2 pictures could not be classified."
    out = capsys.readouterr().out
    assert "cannot classify" in out
    assert "006.jpg" in out


def test_predictions_go_to_a_file(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["predict", str(finished), str(trees / "test"), "--top", "2"]
    main([*given, "-o", str(tmp_path / "new" / "found.csv")])
    with (tmp_path / "new" / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["picture"]) for row in rows] == sorted((trees / "test").rglob("*.jpg"))
    assert list(rows[0]) == ["picture", "class 1", "probability 1", "class 2", "probability 2"]
    assert all(0 <= float(row["probability 2"]) <= float(row["probability 1"]) <= 1 for row in rows)
    capsys.readouterr()
    main(given)
    shown = capsys.readouterr().out
    for path, row in ((Path(row["picture"]), row) for row in rows):
        assert re.search(rf"│ {path.parent.name}/{path.name} +│ {row['class 1']} ", shown)
    assert "Expected out to be a file" in fails(*given, "-o", tmp_path)


class Unlucky:
    """A classifier that gives NaN for the second picture, and is stopped at the fourth."""

    classes = ("ash", "oak")
    asked = 0

    def preprocessing(self, image: Image.Image) -> torch.Tensor:
        return torch.zeros(3, 4, 4)

    def predict(self, images: torch.Tensor, *, mirror: bool) -> torch.Tensor:
        self.asked += 1
        if self.asked == 2:
            raise polycov.NonFiniteError("The model gives NaN or Inf for these pictures.")
        if self.asked == 4:
            raise KeyboardInterrupt
        return torch.tensor([[0.25, 0.75]])


def test_what_was_predicted_before_a_stop_is_kept(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("polycov.inference.predict.classifier", lambda _: Unlucky())
    assert "stopped" in fails("predict", "any", trees / "test", "-o", tmp_path / "found.csv")
    files = sorted((trees / "test").rglob("*.jpg"))
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert lines[1:] == [f"{files[i]},oak,0.75,ash,0.25" for i in (0, 2)]
    out = capsys.readouterr().out
    assert f"cannot classify {files[1]}: The model gives NaN" in out
    assert f"2 of {len(files)} pictures" in out


def read_npz(folder: Path) -> dict[str, np.ndarray]:
    rows = {}
    for path in sorted(folder.glob("part-*.npz")):
        with np.load(path) as shard:
            rows |= dict(zip(shard["names"].tolist(), shard["features"], strict=True))
    return rows


def read_parquet(folder: Path) -> dict[str, np.ndarray]:
    rows = {}
    for path in sorted(folder.glob("part-*.parquet")):
        table = pq.read_table(path)
        rows |= dict(zip(table["name"].to_pylist(), map(np.array, table["feature"].to_pylist()), strict=True))
    return rows


def test_embedding_a_spec_is_the_pool_on_the_backbone(trees: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    out = tmp_path / "features"
    given = ["--format", "npz", "--shard", "4", "--size", "64", "--stage", "2", "--workers", "0"]
    main(["embed", SPEC, str(trees / "test"), "-o", str(out), *given])
    rows = read_npz(out)
    assert len(rows) == 9
    assert len(list(out.glob("part-*.npz"))) == 3
    backbone = polycov.models.backbones.Backbone(stage=2).eval()
    pool = polycov.create_pool(SPEC, backbone.num_features)
    from polycov.data.transforms import Preprocessing

    for name, feature in list(rows.items())[:2]:
        x = Preprocessing(64, 64)(Image.open(name))
        expected = pool(backbone(x[None]))[0].detach().numpy()
        np.testing.assert_allclose(feature, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_embedding_as_int8_keeps_a_scale_for_each_picture(trees: Path, tmp_path: Path, kind: str) -> None:
    given = ["embed", SPEC, str(trees / "test"), "--format", kind, "--size", "64", "--stage", "2", "--workers", "0"]
    main([*given, "-o", str(tmp_path / "whole")])
    main([*given, "-o", str(tmp_path / "small"), "--dtype", "int8"])
    if kind == "npz":
        (file,) = (tmp_path / "small").glob("*.npz")
        found, exact = np.load(file), read_npz(tmp_path / "whole")
        names, features, scales = found["names"], found["features"], found["scales"]
    else:
        found, exact = pq.read_table(tmp_path / "small"), read_parquet(tmp_path / "whole")
        names, scales = found["name"].to_pylist(), found["scale"].to_numpy()
        features = np.array(found["feature"].to_pylist(), dtype=np.int8)
    assert features.dtype == np.int8
    assert list(names) == list(exact)
    for feature, scale, wanted in zip(features, scales, exact.values(), strict=True):
        np.testing.assert_allclose(feature * scale, wanted, atol=0.501 * scale, rtol=0)


def test_embedding_a_run_goes_on_after_a_stop_and_shares_the_work(finished: Path, trees: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    arguments = ["embed", str(finished), str(trees), "-o", str(out), "--shard", "5", "--workers", "0"]
    main(arguments)
    shards = sorted(out.glob("part-*.parquet"))
    first = read_parquet(out)
    assert len(first) == pq.read_table(out).num_rows == 27
    for path in (shards[1], shards[3]):
        path.unlink()  # as if stopped
    kept = shards[0].stat().st_mtime_ns
    processes = [subprocess.Popen([sys.executable, "-m", "polycov", *arguments]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    again = read_parquet(out)
    assert list(again) == list(first)
    for name in first:
        np.testing.assert_allclose(again[name], first[name], rtol=1e-3, atol=1e-5)
    assert shards[0].stat().st_mtime_ns == kept
    said = fails(*arguments[:4], str(out), "--shard", "7", "--workers", "0")
    assert "holds features of another shard: 5, not 7" in said


def test_embedding_skips_or_stops_at_what_it_cannot_read(finished: Path, tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        picture(0, i).save(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "text.png").write_text("no picture")
    arguments = ["embed", str(finished), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--workers", "0"]
    arguments += ["--format", "npz", "--dtype", "float16"]
    assert "it is not a picture. Leave such pictures out with --broken skip" in fails(*arguments)
    main([*arguments, "--broken", "skip"])
    rows = read_npz(tmp_path / "out")
    assert sorted(Path(name).name for name in rows) == ["0.png", "1.png", "2.png"]
    assert next(iter(rows.values())).dtype == np.float16
    (broken,) = (tmp_path / "out" / "_broken.jsonl").read_text().splitlines()
    assert "text.png" in json.loads(broken)["picture"]
