"""The user's Python files and modules that register backbones with timm."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from polycov.errors import PolycovError
from polycov.models.networks import import_timm


def load_plugin(path_or_module: str | Path | None) -> ModuleType | None:
    """Imports a Python file or module of yours that registers backbones with timm's ``register_model``.

    Its code runs, so load only what you trust. Saved models never load a plugin by themselves.

    Args:
        path_or_module: a ``.py`` file, or the name of a module that can be imported. A file is imported once per
            process, like any module. None for no plugin.

    Returns:
        The module, if there is one.

    Raises:
        PolycovError: if there is no such file or module, or importing it fails.
    """
    if path_or_module is None:
        return None
    import_timm()  # a plugin imports it too, and may need the torchvision operators
    text, path = str(path_or_module), Path(path_or_module).expanduser()
    try:
        if path.suffix == ".py" or path.is_file():
            return _import_file(path.resolve())
        return importlib.import_module(text)
    except Exception as error:  # the user's code can raise anything
        raise PolycovError(
            f"Cannot import the plugin {text!r}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _import_file(path: Path) -> ModuleType:
    name = f"polycov_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolycovError(f"Expected a Python file, got {path.name!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # timm's register_model looks for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
