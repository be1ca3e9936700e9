"""The public names, with everything installed and with torch alone."""

import subprocess
import sys
from pathlib import Path

import pytest

import polycov

BLOCK = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked!r} else find(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""
CLI = {"matplotlib", "numpy", "PIL", "rich", "tyro"}  # what the extra cli installs, as far as it is imported here
TRAIN = {
    *("accelerate", "huggingface_hub", "jinja2", "platformdirs", "pydantic", "safetensors", "timm"),
    *("torchvision", "pandas", "psutil"),
}
OTHERS = {"sklearn", "scipy", "onnx", "onnxruntime", "onnxscript", "gradio", "datasets", "pyarrow"}


def without(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    block = BLOCK.format(blocked=sorted(packages))
    return subprocess.run([sys.executable, "-W", "ignore", "-c", block + code], capture_output=True, text=True)


def alone(code: str) -> subprocess.CompletedProcess[str]:
    return without(CLI | TRAIN | OTHERS, code)


def test_every_public_name_exists() -> None:
    assert polycov.__all__ == sorted(polycov.__all__)
    assert all(hasattr(polycov, name) for name in polycov.__all__)
    assert set(polycov.__all__) <= set(dir(polycov))
    assert not hasattr(polycov, "nonsense")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, polycov; assert 'torch' not in sys.modules; polycov.create_pool; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_with_torch_alone_names_exist_and_say_what_to_install() -> None:
    done = alone(
        "import polycov\nfrom polycov import *\n"
        "assert hasattr(polycov, 'Model') and 'train' in dir(polycov)\n"
        "import torch\n"
        "assert polycov.create_pool('isqrt-cov', 4)(torch.rand(2, 4, 3, 3)).shape == (2, 10)\n"
        "assert not isinstance(3, polycov.Model)\n"
        "for use in (lambda: polycov.train('x'), lambda: polycov.Model.from_pretrained('x'), lambda: create_model()):\n"
        "    try:\n"
        "        use()\n"
        "    except polycov.MissingDependencyError as error:\n"
        "        assert isinstance(error, ImportError) and isinstance(error, polycov.PolycovError)\n"
        "        assert 'pip install' in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_extra_cli_lists_and_measures_methods_alone(tmp_path: Path) -> None:
    tiny = ["--rounds", "1", "--batch", "1", "--side", "2", "--channels", "4", "--dim", "8", "--no-paper"]
    code = (
        "from polycov.commands.main import main\n"
        f"main(['list'])\nmain(['bench', '--out', {str(tmp_path)!r}, *{tiny}])\nmain(['train'])"
    )
    done = without(TRAIN | OTHERS, code)
    assert "monet-ts" in done.stdout
    assert f"written: {tmp_path}" in done.stdout
    assert done.returncode == 1
    assert "pip install 'polycov[train]'" in done.stderr


@pytest.mark.slow
def test_the_extra_train_needs_no_other_extra() -> None:
    code = (
        "import pkgutil, importlib, polycov\n"
        "for module in pkgutil.walk_packages(polycov.__path__, 'polycov.'):\n"
        "    if module.name not in ('polycov.__main__', 'polycov.sklearn'):\n"
        "        importlib.import_module(module.name)\n"
        "polycov.create_model('test_resnet', weights='none', pool='isqrt-cov', num_classes=3)"
    )
    done = without(OTHERS | {"pandas"}, code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("broken", [True, False])
def test_a_torchvision_that_is_missing_or_broken_is_named(broken: bool, tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    code = (
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import polycov, torch\n"
        "assert polycov.create_pool('isqrt-cov', 4)(torch.rand(2, 4, 3, 3)).shape == (2, 10)\n"
        "assert len(polycov.data.read_data('typefaces').classes) == 21\n"
        "polycov.create_model(pool='isqrt-cov', num_classes=3)"
    )
    done = without(set() if broken else {"torchvision"}, code)
    assert "MissingDependencyError: Backbones need timm, which needs torchvision" in done.stderr
    assert ("built for another torch" in done.stderr) == broken
    assert "pip install" in done.stderr.splitlines()[-1]
