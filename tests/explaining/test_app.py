"""What the app answers, without a browser."""

import json
import struct
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fake_images import make_image
from polycov.errors import MissingDependencyError, PolycovError
from polycov.explaining import app as module
from polycov.explaining.app import CLASS, NOTHING, PREDICTED, LoadedRun, answer, load_runs, make_app
from polycov.explaining.explain import RUNNER_UP, explain
from polycov.inference.predict import Classifier
from polycov.models.model import Model


@pytest.fixture(scope="module")
def runs(finished: Path) -> list[LoadedRun]:
    return load_runs([finished], device="cpu", neighbours=False)


@pytest.fixture
def upload(trees: Path) -> dict[str, str]:
    return {"path": str(next((trees / "test" / "birch").glob("*.jpg")))}


def test_the_answer_has_classes_evidence_and_the_details_of_the_run(
    runs: list[LoadedRun], upload: dict[str, str]
) -> None:
    page = answer(runs, upload, PREDICTED, NOTHING)
    prediction = Classifier(runs[0].model, "cpu")(Path(upload["path"]), top=3)
    for name, probability in prediction.classes:
        assert f">{name}</span>" in page
        assert f"{probability:.1%}" in page
    assert f"Why {prediction.classes[0][0]}?" in page
    assert page.count("data:image/jpeg") == page.count("data:image/png") == 1
    assert "32 dimensions" in page
    assert "on test images" in page


@pytest.mark.parametrize(
    ("explained", "against", "question"),
    [
        (CLASS + "ash", NOTHING, "Why ash?"),
        (CLASS + "ash", CLASS + "cedar", "Why ash and not cedar?"),
        (CLASS + "cedar", CLASS + "ash", "Why cedar and not ash?"),
    ],
)
def test_the_class_and_what_it_is_compared_with_can_be_chosen(
    runs: list[LoadedRun], upload: dict[str, str], explained: str, against: str, question: str
) -> None:
    assert question in answer(runs, upload, explained, against)


def test_the_runner_up_is_the_second_class(runs: list[LoadedRun], upload: dict[str, str]) -> None:
    (why,) = explain(runs[0].model, upload["path"], against=RUNNER_UP)
    assert f"Why {why.target} and not {why.probabilities[1][0]}?" in answer(runs, upload, PREDICTED, RUNNER_UP)


def test_without_an_image_only_the_runs_are_shown(runs: list[LoadedRun]) -> None:
    page = answer(runs, None, PREDICTED, NOTHING)
    assert "<h2>probe</h2>" in page
    assert "data:image" not in page


def test_runs_stand_side_by_side_and_a_class_that_one_does_not_know_is_a_sentence_there(
    runs: list[LoadedRun], finished: Path, upload: dict[str, str]
) -> None:
    other = Model.from_pretrained(finished)
    other.classes = ["elm", "fir", "<i>gum</i>"]
    page = answer([*runs, LoadedRun("other", other)], upload, CLASS + "ash", NOTHING)
    assert page.count('<section class="pc-panel">') == 2
    assert page.count("Why ash?") == 1
    assert "Unknown class &#x27;ash&#x27;" in page
    assert "<i>" not in page
    assert "<i>" not in answer([LoadedRun("<i>", other)], upload, CLASS + "elm", CLASS + "<i>gum</i>")


def test_runs_with_the_same_name_are_shown_with_their_folders(finished: Path) -> None:
    names = [run.name for run in load_runs([finished, finished], neighbours=False)]
    assert names == [str(finished)] * 2


def png(width: int, height: int) -> bytes:
    """A few bytes that claim to be an image of this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    result = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")):
        result += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return result


def broken_files(folder: Path) -> dict[str, Path]:
    good = folder / "good.jpg"
    make_image(0, 0).save(good)
    contents = {
        "empty": b"",
        "text": b"this is not an image",
        "cut": good.read_bytes()[:300],
        "noise": b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8,
        "huge": png(60000, 60000),
        "large": png(9000, 9000),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"></svg>',
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def test_a_broken_or_hostile_file_is_a_sentence(runs: list[LoadedRun], tmp_path: Path) -> None:
    for name, path in broken_files(tmp_path).items():
        page = answer(runs, {"path": str(path)}, PREDICTED, NOTHING)
        assert page.startswith('<p class="pc-message" role="alert">This '), name
        assert str(tmp_path) not in page, name  # where files are on this machine is nobody's business
    assert "9000 × 9000 pixels; at most 64 million" in answer(
        runs, {"path": str(tmp_path / "large")}, PREDICTED, NOTHING
    )
    assert "it is not an image" in answer(runs, {"path": str(tmp_path / "postscript")}, PREDICTED, NOTHING)
    missing = answer(runs, {"path": str(tmp_path / "missing")}, PREDICTED, NOTHING)
    assert "it is missing" in missing
    assert str(tmp_path) not in missing
    assert "pc-message" in answer(runs, {"path": None, "url": "data:image/png;base64,AAAA"}, PREDICTED, NOTHING)


def test_out_of_memory_is_a_sentence(
    runs: list[LoadedRun], upload: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(module, "explain", fail)
    assert 'role="alert">out of memory</p>' in answer(runs, upload, PREDICTED, NOTHING)


def test_no_runs_and_no_gradio_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolycovError, match="Expected the folder of a run"):
        load_runs([])
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'polycov\[app\]'"):
        make_app(["anything"])


BUILD = """
import json, os, sys
from polycov.explaining.app import make_app

app = make_app([sys.argv[1]], device="cpu", neighbours=False)
choices = {c["props"].get("elem_id"): c["props"].get("choices") for c in app.config["components"]}
telemetry = app.analytics_enabled or os.environ["GRADIO_ANALYTICS_ENABLED"] != "False"
print(json.dumps({"choices": choices, "telemetry": telemetry, "allowed": app.allowed_paths}))
"""


@pytest.mark.slow
def test_the_app_lists_all_classes_and_telemetry_is_off(finished: Path) -> None:
    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    # In a process of its own, since gradio leaves an event loop open.
    done = subprocess.run([sys.executable, "-c", BUILD, str(finished)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    app = json.loads(done.stdout)
    names = [[name, CLASS + name] for name in ("ash", "birch", "cedar")]
    assert app["choices"]["explain"] == [["the predicted class", PREDICTED], *names]
    assert app["choices"]["against"] == [["nothing", NOTHING], ["the runner-up", RUNNER_UP], *names]
    assert not app["telemetry"]
    assert app["allowed"] == []
