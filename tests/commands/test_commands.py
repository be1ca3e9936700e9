"""The commands as a user meets them: help, results, and one clear sentence for each mistake."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import polycov
from command_line import fails, stop
from fake_images import write_classes
from polycov.commands.main import COMMANDS, main
from polycov.inference.predict import Classifier, Prediction
from polycov.training.run_folder import load_run

TINY = ["--backbone", "test_resnet", "--weights", "none", "--size", "64", "--workers", "0"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert stop(*command, "--help") == (0, "")
    out = capsys.readouterr().out
    assert "usage: polycov" in out
    assert "STR STR" not in out
    if command:
        assert COMMANDS[command[0]]
        assert "picture" not in out


def test_help_and_version_import_neither_torch_nor_a_command() -> None:
    code = (
        "import sys\nfrom polycov.commands.main import main\n"
        "try:\n    main([sys.argv[1]])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'tyro', 'numpy', 'timm', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for argument in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "polycov" in done.stdout


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("tarin", "--help").startswith("polycov: Unknown command 'tarin'. Did you mean 'train'? Known: app, ")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
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
        "polycov: No backbone matches 'nothing*'. Try a pattern such as 'resnet*'."
    )


MISTAKES = {
    "no data": (["train", "nowhere"], "There is no folder 'nowhere'"),
    "no recipe": (["train", "--recipe", "nowhere.toml"], "There is no recipe 'nowhere.toml'"),
    "no run to resume": (["train", "--resume", "nowhere"], "'nowhere' is neither a run nor a model"),
    "no backbone": (["train", "TREES", "--backbone", "resnet51"], "Unknown backbone 'resnet51'"),
    "no method": (["train", "TREES", *TINY, "--pool", "ipcp-ts"], "Did you mean 'ipccp-ts'"),
    "no free dim": (["train", "TREES", *TINY, "--pool", "isqrt-cov", "--dim", "9"], "'isqrt-cov' takes only"),
    "no weights": (["train", "TREES", "--weights", "none.pth"], "There is no weights file 'none.pth'"),
    "no stage": (["train", "TREES", *TINY, "--stage", "9"], "Expected a stage from 0 to"),
    "small images": (["train", "TREES", *TINY, "--size", "4"], "from 8 to 4096"),
    "no epochs": (["train", "TREES", "--epochs", "0"], "Expected epochs to be at least 1, got 0"),
    "no device": (["train", "TREES", *TINY, "--device", "foo"], "The device 'foo' is not available"),
    "no plugin": (["train", "TREES", *TINY, "--plugin", "nowhere.py"], "nowhere.py"),
    "evaluate nothing": (["evaluate", "nowhere"], "There is no run 'nowhere'"),
    "evaluate no run": (["evaluate", "TREES"], "is neither a run nor a model: it has no config.json"),
    "predict nothing": (["predict", "RUN", "nowhere.jpg"], "There is no image 'nowhere.jpg'"),
    "predict no image": (["predict", "RUN"], "Expected images"),
    "embed nothing": (["embed", "ipccp-ts", "nowhere.jpg", *TINY], "There is no file or folder 'nowhere.jpg'"),
    "embed with no method": (["embed", "ipcp-ts", "TREES", *TINY], "Did you mean 'ipccp-ts'"),
    "embed unfitted": (["embed", "ipccp-fit", "TREES", *TINY, "--dim", "8"], "Fit it first, by polycov train"),
    "embed a run of its own size": (["embed", "RUN", "TREES", "--dim", "8"], "omit --dim, --size"),
    "embed on no device": (["embed", "ipccp-ts", "TREES", "--device", "foo"], "The device 'foo' is not available"),
    "evaluate no batch": (["evaluate", "RUN", "--batch-size", "0"], "Expected batch_size to be at least 1"),
    "probe without validation": (["train", "TREES", *TINY, "--probe", "--val-fraction", "0"], "--val-fraction"),
    "search nothing": (["search", "nowhere", "a.jpg"], "There is no file 'nowhere/_embedding.json'"),
    "search for nothing": (["search", "nowhere"], "Expected images to search for, or --duplicates"),
    "search and duplicates": (["search", "nowhere", "a.jpg", "--duplicates"], "--duplicates without images"),
    "search into a picture": (["search", "nowhere", "a.jpg", "-o", "x.png"], "a .csv or .html file, got 'x.png'"),
    "embed into a file": (["embed", "ipccp-ts", "TREES", "-o", "x.parquet"], "--out is a folder of shards"),
    "report nothing": (["report"], "Expected folders of comparisons"),
    "explain nothing": (["explain", "RUN"], "Expected images"),
    "explain no image": (["explain", "RUN", "nowhere.jpg"], "There is no image 'nowhere.jpg'"),
    "explain no class": (["explain", "RUN", "IMAGE", "--class", "ahs"], "Did you mean 'ash'"),
    "explain against no class": (["explain", "RUN", "IMAGE", "--against", "brich"], "Did you mean 'birch'"),
    "explain no run": (["explain", "TREES", "IMAGE"], "it has no config.json"),
    "explain as text": (["explain", "RUN", "IMAGE", "-o", "x.txt"], "ends in .html, .png, .svg or .pdf, got 'x.txt'"),
    "explain on no device": (["explain", "RUN", "IMAGE", "--device", "foo"], "The device 'foo' is not available"),
    "explain with fewer neighbours": (["explain", "RUN", "IMAGE", "--neighbours", "-1"], "at least 0, got -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_sentence(
    mistake: str, trees: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    names = {"TREES": str(trees), "RUN": str(finished), "IMAGE": str(trees / "test" / "ash" / "006.jpg")}
    sentence = fails(*(names.get(argument, argument) for argument in arguments))
    assert sentence.startswith("polycov: ")
    assert message in sentence
    assert "\n" not in sentence


def test_an_unknown_option_is_refused() -> None:
    assert "--learning-rate" in fails("train", "--learning-rate", "1")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (polycov.PolycovError("No."), 2, "polycov: No."),
        (polycov.NonFiniteError("NaN."), 1, "polycov: NaN."),
        (polycov.MissingDependencyError("Install it."), 1, "polycov: Install it."),
        (OSError(28, "No space left on device", "x"), 1, "polycov: [Errno 28] No space left on device: 'x'"),
        (KeyboardInterrupt(), 130, "polycov: stopped."),
        (KeyboardInterrupt("Resume with: polycov train --resume r"), 130, "polycov: stopped. Resume with: polycov t"),
    ],
)
def test_exit_codes(error: BaseException, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr("polycov.commands.list.run", run)
    left, words = stop("list")
    assert left == code
    assert words.startswith(sentence)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_never_shows_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    stop(command, "--help")
    assert "None" not in capsys.readouterr().out


def test_the_data_are_optional_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "compare"):
        stop(command, "--help")
        assert capsys.readouterr().out.startswith(f"usage: polycov {command} [-h] [OPTIONS] [DATA]")


def test_the_command_line_takes_precedence_over_the_recipe(trees: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[training]\nprobe = true\n[network]\nbackbone = "test_resnet"\nweights = "none"\nstage = 1\n')
    options = ["--recipe", str(recipe), "--size", "64", "--stage", "2", "--dim", "12", "--workers", "0"]
    main(["train", str(trees), *options, "-o", str(tmp_path / "run")])
    loaded = load_run(tmp_path / "run")
    assert loaded.model.backbone.stage == 2
    assert loaded.config.training.probe
    assert loaded.model.pool.out_features == 12


@pytest.mark.slow
def test_a_backbone_of_the_user_is_registered_by_a_plugin(trees: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "my_networks.py"
    plugin.write_text(
        "import timm\nfrom timm.models import register_model\n\n"
        "@register_model\ndef my_little_resnet(pretrained=False, **options):\n"
        "    return timm.create_model('test_resnet', **options)\n"
    )
    options = ["--backbone", "my_little_resnet", "--weights", "none", "--size", "64", "--stage", "2", "--dim", "8"]
    options += ["--workers", "0", "--probe", "--pool", "ipccp-ts", "-o", str(tmp_path / "run"), "--plugin", str(plugin)]
    main(["train", str(trees), *options])
    assert str(plugin) not in (tmp_path / "run" / "config.json").read_text()
    command = [sys.executable, "-m", "polycov", "evaluate", str(tmp_path / "run"), "--workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Unknown backbone 'my_little_resnet'" in done.stderr
    assert "--plugin" in done.stderr
    subprocess.run([*command, "--plugin", str(plugin)], check=True, stdout=subprocess.DEVNULL)


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path / "x", ["[red]", "[bold]q"], 8)
    options = [*TINY, "--stage", "2", "--dim", "8", "--probe", "--pool", "ipccp-ts"]
    main(["train", str(tmp_path / "x"), *options, "--out", str(tmp_path / "[bold]run")])
    main(["evaluate", str(tmp_path / "[bold]run"), "--workers", "0"])
    main(["predict", str(tmp_path / "[bold]run"), str(tmp_path / "x" / "[red]" / "000.jpg")])
    out = capsys.readouterr().out
    assert "[bold]run" in out
    assert "[red]" in out
    assert "[bold]q" in out


def test_predict_names_what_it_cannot_read_and_continues(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    good = trees / "test" / "ash" / "006.jpg"
    sentence = "polycov: 1 of 2 images could not be classified."
    assert stop("predict", finished, tmp_path / "text.jpg", good) == (1, sentence)
    out = capsys.readouterr().out
    assert "cannot classify" in out
    assert "006.jpg" in out


def test_predictions_go_to_a_file(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", str(finished), str(trees / "test"), "--top", "2"]
    main([*arguments, "-o", str(tmp_path / "new" / "predictions.csv")])
    with (tmp_path / "new" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["image"]) for row in rows] == sorted((trees / "test").rglob("*.jpg"))
    assert list(rows[0]) == ["image", "class 1", "probability 1", "class 2", "probability 2"]
    assert all(0 <= float(row["probability 2"]) <= float(row["probability 1"]) <= 1 for row in rows)
    capsys.readouterr()
    main(arguments)
    lines = capsys.readouterr().out.splitlines()
    for row in rows:
        name = "/".join(Path(row["image"]).parts[-2:])
        (line,) = (line for line in lines if name in line)
        best = f"{row['class 1']} {float(row['probability 1']):.0%}"
        assert best in line
        assert line.index(best) < line.index(
            f"{row['class 2']} {float(row['probability 2']):.0%}", line.index(best) + 1
        )
    assert "Expected out to be a file" in fails(*arguments, "-o", tmp_path)


def test_an_interrupted_prediction_keeps_what_it_has_and_what_was_there(
    finished: Path, trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", str(finished), str(trees / "test"), "-o", str(tmp_path / "p.csv")]
    main(arguments)
    complete = (tmp_path / "p.csv").read_text()
    classify, asked = Classifier.__call__, list[Path]()

    def unlucky(self: Classifier, file: Path, top: int = 5, mirror: bool = False) -> Prediction:
        asked.append(file)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return Prediction(file, (), "NaN") if len(asked) == 2 else classify(self, file, top, mirror)

    monkeypatch.setattr(Classifier, "__call__", unlucky)
    assert stop(*arguments) == (130, "polycov: stopped.")
    assert (tmp_path / "p.csv").read_text() == complete
    partial = (tmp_path / "p.partial.csv").read_text().splitlines()
    assert [complete.splitlines()[i] for i in (0, 1, 3)] == partial
    out = capsys.readouterr().out
    assert f"cannot classify {asked[1]}: NaN" in out
    assert "2 of 9 images" in out
    monkeypatch.undo()
    main(arguments)
    assert not (tmp_path / "p.partial.csv").exists()  # it is complete now


def test_explain_writes_a_page_or_figures(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [str(trees / "test" / "ash" / "006.jpg"), str(trees / "test" / "birch" / "007.jpg")]
    page = tmp_path / "new" / "page.html"
    main(["explain", str(finished), *images, "-o", str(page), "--class", "cedar", "--against", "ash"])
    text = page.read_text(encoding="utf-8")
    assert text.count("Why cedar and not ash?") >= 2
    assert "Most similar training images" in text
    main(["explain", str(finished), *images, "-o", str(tmp_path / "figure.png")])
    out = capsys.readouterr().out
    assert str(page) in out
    assert "figure-1.png" in out
    assert "figure-2.png" in out
    with Image.open(tmp_path / "figure-2.png") as figure:
        assert figure.width > 1000
    main(["export", str(finished), "-o", str(tmp_path / "model")])
    main(["explain", str(tmp_path / "model"), images[0], "-o", str(page)])  # not a run: it has no training images
    assert "no similar training images" in capsys.readouterr().out
    assert "Most similar training images" not in page.read_text(encoding="utf-8")


def test_export_writes_what_predict_reads(
    finished: Path, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(finished), "-o", str(tmp_path / "model")])
    assert "written" in capsys.readouterr().out
    main(["predict", str(tmp_path / "model"), str(trees / "test" / "ash"), "--top", "1"])
    assert capsys.readouterr().out.count("%") == 3
    model = polycov.Model.from_pretrained(tmp_path / "model")
    image = model.preprocessing(Image.open(next((trees / "test" / "ash").iterdir())))
    assert torch.isfinite(model(image[None])).all()
