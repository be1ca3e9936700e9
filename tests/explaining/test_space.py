import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import metadata_load

from command_line import fails
from polycov.commands.main import main
from polycov.errors import PolycovError
from polycov.explaining.space import write_space
from polycov.models.model import Model
from polycov.models.model_folder import GENERATED, ModelFolder


def test_a_space_has_the_model_the_app_and_what_the_hub_needs(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "space"
    result = write_space(finished, folder, title="Trees: which?", license="cc-by-4.0")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "app.py", "model", "requirements.txt"]
    assert ModelFolder(folder / "model").is_finished
    assert Model.from_pretrained(folder / "model").classes == ["ash", "birch", "cedar"]
    assert (folder / "requirements.txt").read_text(encoding="utf-8").startswith("polycov[app]==")
    front = metadata_load(folder / "README.md") or {}
    assert front["sdk"] == "gradio"
    assert (folder / str(front["app_file"])).is_file()
    assert (front["title"], front["license"]) == ("Trees: which?", "cc-by-4.0")
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "test accuracy" in text
    assert "| licence | cc-by-4.0 |" in text
    assert result.bytes > (folder / "model" / "model.safetensors").stat().st_size


def test_no_training_image_is_published(finished: Path, tmp_path: Path) -> None:
    write_space(finished, tmp_path)
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".safetensors", ".md", ".py", ".txt"}


def test_a_readme_of_the_user_is_kept(finished: Path, tmp_path: Path) -> None:
    write_space(finished, tmp_path)
    assert GENERATED in (tmp_path / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    write_space(finished, tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


def test_mistakes(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolycovError, match="Expected a folder for the Space"):
        write_space(finished, tmp_path / "file")
    plugin = tmp_path / "plugin.py"
    plugin.touch()
    sentence = fails("export", finished, "--space", tmp_path / "space", "--plugin", plugin)
    assert "A Space cannot have a plugin" in sentence
    assert not (tmp_path / "space").exists()


@pytest.mark.slow
def test_the_written_app_imports_and_builds(finished: Path, tmp_path: Path) -> None:
    if find_spec("gradio") is None:
        pytest.skip("needs gradio")
    main(["export", str(finished), "--space", str(tmp_path / "space")])
    code = "import app\nassert type(app.app).__name__ == 'Blocks'\nprint(len(app.app.fns))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "space", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
