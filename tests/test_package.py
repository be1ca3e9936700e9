"""The built wheel, installed outside the checkout: what it ships, with torch alone and with the packages of the tests.

`make test-package` (clean_installs.py) installs it with each extra into clean environments.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import polycov
from once import once

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow
CORE = {"torch", "functorch", "torchgen", "typing_extensions", "filelock", "sympy", "mpmath", "networkx", "jinja2"}
CORE |= {"markupsafe", "fsspec", "setuptools", "polycov", "numpy"}  # numpy: torch uses it where it is installed


def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    texts = [str(word) for word in words]
    return subprocess.run(texts, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build.__main__")

    def make(folder: Path) -> None:
        done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "built", make)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; its other packages are those of this one, of which polycov is hidden."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "env")
    done = run(
        *(sys.executable, "-m", "pip", "--python", folder / "env", "--disable-pip-version-check"),
        *("install", "--quiet", "--no-deps", wheel),
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (shared,) = {path for path in sys.path if (Path(path) / "torch" / "__init__.py").is_file()}
    (packages / "shared.pth").write_text(f"{shared}\n")
    return folder


@pytest.mark.parametrize("repository", ["Someone/polycov", None])
def test_urls_are_those_of_the_repository_it_is_built_from(
    repository: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = pytest.importorskip("hatchling.metadata.core")
    plugins = pytest.importorskip("hatchling.plugin.manager")
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    urls = core.ProjectMetadata(str(ROOT), plugins.PluginManager()).core.urls
    assert list(urls) == (["Documentation", "Source", "Issues", "Changelog"] if repository else [])
    if repository:
        assert urls["Documentation"] == "https://someone.github.io/polycov/"
        assert urls["Issues"] == "https://github.com/Someone/polycov/issues"


def test_the_wheel_has_recipes_templates_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        metadata = message_from_bytes(archive.read(f"polycov-{polycov.__version__}.dist-info/METADATA"))
    source = ROOT / "src"
    wanted = {path.relative_to(source).as_posix() for path in (source / "polycov").rglob("*") if path.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} == {
        name for name in shipped if "dist-info" not in name
    }
    assert {"polycov/py.typed", "polycov/recipes/cub-resnet50.toml", "polycov/comparing/report/page.html"} <= shipped
    needed = [text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert needed == ["torch>=2.6"]
    assert metadata["License-Expression"] == "MIT"
    assert {"app", "export", "fast", "ray", "search", "sklearn", "train"} <= set(
        metadata.get_all("Provides-Extra") or []
    )


def test_the_sdist_has_what_the_tests_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", folder=ROOT).stdout.splitlines()
    kept = ("src/", "tests/", "docs/", "examples/", "benchmarks/")
    assert {name for name in tracked if name.startswith(kept) or "/" not in name} - names <= {".pre-commit-config.yaml"}
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or "docs/_build" in name]


def test_with_torch_alone_pools_work_and_the_command_says_what_to_install(installed: Path) -> None:
    block = (
        "import sys\nfrom importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        f"core = {sorted(CORE)!r}\n"
        "def find_spec(name, path=None, target=None):\n"
        "    spec = find(name, path, target)\n"
        "    foreign = spec and spec.origin and 'site-packages' in spec.origin\n"
        "    return None if foreign and name.partition('.')[0].lstrip('_') not in core else spec\n"
        "PathFinder.find_spec = staticmethod(find_spec)\n"
    )
    code = (
        "import polycov, torch\n"
        f"assert {str(installed)!r} in polycov.__file__, polycov.__file__\n"
        "assert polycov.create_pool('ipccp-ts', 8, dim=32)(torch.rand(2, 8, 5, 5)).shape == (2, 32)\n"
        "print(*polycov.list_methods())\n"
        "from polycov.commands.main import main\nmain(['train'])\n"
    )
    done = run(installed / "env/bin/python", "-W", "ignore", "-c", block + code, folder=installed)
    assert "isqrt-cov" in done.stdout, done.stderr
    assert done.returncode == 1
    assert "pip install 'polycov[train]'" in done.stderr


def test_the_command_works_outside_the_checkout(installed: Path) -> None:
    command = installed / "env/bin/polycov"
    assert run(command, "--version", folder=installed).stdout == f"polycov {polycov.__version__}\n"
    small = {"size": 64, "backbone": "test_resnet", "weights": "none", "dim": 16, "pool": "ipccp-cs", "workers": 0}
    options = ["--probe", *(word for name, value in small.items() for word in (f"--{name}", value))]
    for label in ("red", "green"):
        for split in ("train", "test"):
            write_images(installed / "colours" / split / label, label)
    cache = installed / "cache"
    done = run(command, "train", "colours", *options, "--cache", cache, "-o", "run", folder=installed)
    assert done.returncode == 0, done.stderr
    done = run(command, "train", "colours", "--recipe", "cub-resnet50", "--help", folder=installed)
    assert "Passes over the training images. (default: 100)" in " ".join(done.stdout.replace("│", " ").split())


def write_images(folder: Path, colour: str) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for index in range(6):
        Image.new("RGB", (64 + index, 64), colour).save(folder / f"{index}.png")


def test_types_are_seen_from_outside(installed: Path) -> None:
    """With `py.typed` mypy knows what public functions take and return; other packages are skipped, for their size."""
    pytest.importorskip("mypy")
    (installed / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\n[mypy-polycov.*]\nfollow_imports = normal\n")
    (installed / "use.py").write_text(
        "import polycov\nreveal_type(polycov.list_methods())\nreveal_type(polycov.__version__)\npolycov.parse_spec(3)\n"
    )
    done = run(
        *(sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "mypy-cache"),
        *("--python-executable", installed / "env/bin/python", "use.py"),
        folder=installed,
    )
    assert 'Revealed type is "list[str]"' in done.stdout.replace("builtins.", ""), done.stdout
    assert 'Argument 1 to "parse_spec" has incompatible type "int"' in done.stdout
    assert "py.typed" not in done.stdout
