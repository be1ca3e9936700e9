"""The public names, with everything installed and with torch alone."""

import subprocess
import sys

import pytest

import polycov

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"timm", "huggingface_hub", "accelerate", "safetensors", "PIL", "pydantic", "rich",
                                      "tyro", "matplotlib", "sklearn", "platformdirs", "onnx", "jinja2", "pandas"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def alone(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True)


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
