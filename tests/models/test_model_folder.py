"""Models as folders and on a hub: the same bits come back, and nothing that could run does."""

import hashlib
import http.server
import json
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import polycov
from pictures import write_data
from polycov.commands.main import main
from polycov.models.pretrained import method_of


@pytest.fixture(scope="module")
def model() -> polycov.Model:
    torch.manual_seed(0)
    model = polycov.create_model("resnet18", pool="ipccp-fit", dim=8, channels=12, num_classes=3, weights="none")
    model.pool.fit([torch.randn(40, 12, 6, 6)])
    model.classes = ["oak", "ash", "elm"]
    return model.eval()


@pytest.fixture
def saved(model: polycov.Model, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def same(one: polycov.Model, other: polycov.Model) -> None:
    theirs = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
        assert tensor.dtype == theirs[name].dtype
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(one(x), other(x))
    assert one.classes == other.classes
    assert one.preprocessing == other.preprocessing
    assert repr(one.pool) == repr(other.pool)


def test_a_round_trip_is_bit_for_bit(model: polycov.Model, saved: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = polycov.Model.from_pretrained(saved)
    assert not again.training
    same(model, again)
    again.save_pretrained(tmp_path / "twice")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "twice" / name).read_bytes() == (saved / name).read_bytes()


def test_the_folder_of_a_run_is_a_model_and_its_card_states_what_was_measured(tmp_path: Path) -> None:
    trees = write_data(tmp_path / "trees", train=8, test=4)
    given = ["--size", "64", "--stage", "2", "--channels", "8", "--dim", "32", "--workers", "0"]
    given += ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    main(["train", "--probe", "--data", str(trees), *given])
    run = polycov.Model.from_pretrained(tmp_path / "run")
    main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    again = polycov.Model.from_pretrained(tmp_path / "out")
    same(run, again)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    measured = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "license: apache-2.0" in card  # of the weights that it began with
    assert f"{measured['test_accuracy']:.2%} on 12 test pictures" in card
    assert "trees: 3 classes; pictures: 18 train, 6 val, 12 test" in card
    assert "`ipccp-ts`" in card
    assert r"covariance \| sqrt(5) \| tensor_sketch(32)" in card
    assert str(tmp_path) not in card + (tmp_path / "out" / "config.json").read_text()
    main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "mine"), "--license", "mit"])
    assert "license: mit" in (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert polycov.Model.from_pretrained(tmp_path / "mine").about["license"] == "mit"


def test_the_snippet_of_a_card_runs(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    card = (saved / "README.md").read_text(encoding="utf-8")
    Image.new("RGB", (80, 60)).save(tmp_path / "picture.jpg")
    monkeypatch.chdir(tmp_path)
    snippet = card.partition("```python\n")[2].partition("```")[0].replace("THIS_MODEL", str(saved))
    names: dict[str, object] = {}
    exec(snippet, names)
    assert tuple(names["probabilities"].shape) == (3,)  # type: ignore[attr-defined]


def test_a_card_is_of_the_model_beside_it(model: polycov.Model, saved: Path) -> None:
    other = polycov.create_model("resnet18", pool="gem", channels=12, num_classes=2, weights="none")
    other.classes = ["a|b", "new\nline <b> \udcff"]
    other.save_pretrained(saved)
    card = (saved / "README.md").read_text(encoding="utf-8")
    assert "`gem`" in card
    assert r"Classes: a\|b, new line &lt;b>" in card
    (saved / "README.md").write_text("My own words.")
    model.save_pretrained(saved)
    assert (saved / "README.md").read_text() == "My own words."


def test_what_a_pool_was_set_to_and_the_dtype_come_back(tmp_path: Path) -> None:
    made = polycov.create_model(
        "resnet18",
        pool="ipccp-ts",
        dim=8,
        channels=12,
        num_classes=2,
        weights="none",
        route="paper",
        check_finite=False,
    )
    made.double().save_pretrained(tmp_path)
    again = polycov.Model.from_pretrained(tmp_path)
    assert (again.pool.route, again.pool.check_finite) == ("paper", False)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert torch.equal(again(x), made.eval()(x))


def test_names_must_be_as_many_as_outputs(model: polycov.Model, tmp_path: Path) -> None:
    other = polycov.create_model("resnet18", pool="gem", channels=12, num_classes=2, weights="none")
    other.classifier = torch.nn.Linear(12, 5)
    with pytest.raises(polycov.PolycovError, match="Expected model\\.classes to be a list of 5 names"):
        other.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x" / "config.json").exists()


def test_uploading_without_a_hub_ends_in_a_sentence(model: polycov.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi.create_repo", refuse)
    with pytest.raises(polycov.PolycovError, match="Cannot upload to 'me/trees': ConnectionError no network"):
        model.push_to_hub("me/trees")


def test_a_model_that_gives_nan_does_not_predict() -> None:
    made = polycov.create_model("resnet18", pool="gem", channels=12, num_classes=2, weights="none")
    torch.nn.init.constant_(made.classifier.weight, torch.nan)
    with pytest.raises(polycov.NonFiniteError, match="The model gives NaN"):
        made.predict(torch.rand(1, 3, 64, 64))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pkl", "model.pt", "last.ckpt"])
def test_a_folder_with_a_pickle_is_refused_by_name(saved: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("a pickle was run",)

    (saved / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(polycov.PolycovError, match=rf"has '{name}': perhaps a pickle"):
        polycov.Model.from_pretrained(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(polycov.PolycovError, match=rf"has '{name}': perhaps a pickle"):
        polycov.Model.from_pretrained(saved)


def test_arrays_that_do_not_fit_are_refused_by_name(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = load_file(path)
    notes = {"polycov": json.dumps({"format": 1})}
    save_file({**whole, "classifier.weight": torch.zeros(4, 8)}, path, notes)
    with pytest.raises(polycov.PolycovError, match=r"classifier.weight is \(4, 8\), not \(3, 8\)"):
        polycov.Model.from_pretrained(saved)
    save_file({name: tensor for name, tensor in whole.items() if name != "classifier.bias"}, path, notes)
    with pytest.raises(polycov.PolycovError, match=r"classifier\.bias is missing"):
        polycov.Model.from_pretrained(saved)
    save_file({**whole, "more": torch.zeros(1)}, path, notes)
    with pytest.raises(polycov.PolycovError, match="more is not in the model"):
        polycov.Model.from_pretrained(saved)
    save_file({**whole, "classifier.weight": torch.zeros(3, 8, dtype=torch.int8)}, path, notes)
    with pytest.raises(polycov.PolycovError, match=r"classifier.weight is torch.int8, not torch.float32"):
        polycov.Model.from_pretrained(saved)
    save_file({**whole, "pool.vector.order": whole["pool.vector.order"] + 10**6}, path, notes)
    with pytest.raises(polycov.PolycovError, match="does not fit the model"):
        polycov.Model.from_pretrained(saved)
    path.write_bytes(b"no tensors")
    with pytest.raises(polycov.PolycovError, match="Cannot read"):
        polycov.Model.from_pretrained(saved)


def test_folders_that_are_no_models_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(polycov.PolycovError, match=r"There is no folder '\./nowhere'"):
        polycov.Model.from_pretrained("./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(polycov.PolycovError, match=r"is neither a run nor a model: it has no config\.json"):
        polycov.Model.from_pretrained(tmp_path / "empty")
    described = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(described | {"classes": ["oak"]}))
    with pytest.raises(polycov.PolycovError, match="Expected model\\.classes to be a list of 3 names"):
        polycov.Model.from_pretrained(saved)
    for wrong in (
        {"format": 99},
        {"classes": "abc"},
        {"preprocessing": described["preprocessing"] | {"mean": [None] * 3}},
    ):
        (saved / "config.json").write_text(json.dumps(described | wrong))
        with pytest.raises(polycov.PolycovError, match="is not one of this version"):
            polycov.Model.from_pretrained(saved)
    huge = described["model"] | {"pool": "covariance | sqrt(5) | count_sketch(999999999) | project(8)"}
    for wrong in (huge, described["model"] | {"channels": 2**30}, described["model"] | {"size": -1}):
        (saved / "config.json").write_text(json.dumps(described | {"model": wrong}))
        with pytest.raises(polycov.PolycovError, match="is not one of this version"):
            polycov.Model.from_pretrained(saved)
    (saved / "config.json").write_text("[" * 100_000)
    with pytest.raises(polycov.PolycovError, match="Expected JSON"):
        polycov.Model.from_pretrained(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(polycov.PolycovError, match="Expected JSON"):
        polycov.Model.from_pretrained(saved)
    (saved / "config.json").write_text("{}")
    with pytest.raises(polycov.PolycovError, match="is not one of this version"):
        polycov.Model.from_pretrained(saved)


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as a download needs: files of one model by name, with digest and revision."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.asked.append(self.path)
        path = self.folder / self.path.rpartition("/")[2]
        if not self.path.startswith("/me/trees/resolve/main/") or not path.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0123456789012345678901234567890123456789")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Hub.folder, Hub.asked = saved, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_name_is_looked_for_on_the_hub(model: polycov.Model, saved: Path, hub: str, tmp_path: Path) -> None:
    (saved / "pytorch_model.bin").write_bytes(b"a pickle")  # never asked for, so that it does not matter
    options = {"endpoint": hub, "cache_dir": tmp_path / "cache"}
    same(model, polycov.Model.from_pretrained("me/trees", **options))
    assert {path.rpartition("/")[2] for path in Hub.asked} == {"config.json", "model.safetensors"}
    Hub.asked.clear()
    same(model, polycov.Model.from_pretrained("me/trees", local_files_only=True, **options))
    assert Hub.asked == []
    with pytest.raises(polycov.PolycovError, match=r"There is no folder 'me/nothing', and the hub does not give"):
        polycov.Model.from_pretrained("me/nothing", **options)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(polycov.PolycovError, match=r"There is no folder 'me/trees', and the hub does not give"):
        polycov.Model.from_pretrained("me/trees", local_files_only=True, **options)


def test_the_name_of_a_method_is_found_again() -> None:
    for name in ("average", "isqrt-cov", "ipccp-cs"):
        made = polycov.create_model("resnet18", pool=name, num_classes=2, channels=12, weights="none")
        assert method_of(made) == name
    made = polycov.create_model("resnet18", pool="covariance | log(16) | triu", num_classes=2, weights="none")
    assert method_of(made) == "covariance | log(16) | triu"
