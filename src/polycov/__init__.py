"""Second-order pooling: local features to one compact vector built from their covariance.

Everything is imported when it is first used, so that ``import polycov`` is quick and needs torch alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

from polycov.errors import MissingDependencyError, NonFiniteError, NotFittedError, PolycovError, SpecError

if TYPE_CHECKING:
    from polycov import functional
    from polycov.comparing.compare import compare
    from polycov.comparing.comparison import Comparison, load_comparison
    from polycov.comparing.options import CompareOptions
    from polycov.explaining.explain import explain
    from polycov.explaining.explanation import Explanation
    from polycov.inference.duplicates import find_duplicates
    from polycov.inference.embed import embed
    from polycov.inference.embedder import EmbedOptions
    from polycov.inference.embeddings import Embeddings
    from polycov.inference.evaluate import EvaluateOptions, evaluate
    from polycov.inference.evaluation import Evaluation
    from polycov.inference.found import Duplicates, SearchResult
    from polycov.inference.predict import Prediction, predict
    from polycov.inference.search import search
    from polycov.models.attach import attach
    from polycov.models.export import export
    from polycov.models.model import Model, create_model
    from polycov.pooling.cross_pool import CrossPool, TwoInputPool
    from polycov.pooling.first_order_pool import FirstOrderPool
    from polycov.pooling.methods import create_pool, get_method, list_methods
    from polycov.pooling.pool import Pool, SecondOrderPool
    from polycov.pooling.registry import list_stages, register
    from polycov.pooling.side_by_side import SideBySidePool
    from polycov.pooling.spec import parse_spec
    from polycov.progress import LogProgress, Progress
    from polycov.training.config import Config
    from polycov.training.train import TrainResult, train

__version__ = "0.2.0"

_MODULES = {
    "CompareOptions": "comparing.options",
    "Comparison": "comparing.comparison",
    "Config": "training.config",
    "CrossPool": "pooling.cross_pool",
    "Duplicates": "inference.found",
    "EmbedOptions": "inference.embedder",
    "Embeddings": "inference.embeddings",
    "EvaluateOptions": "inference.evaluate",
    "Evaluation": "inference.evaluation",
    "Explanation": "explaining.explanation",
    "FirstOrderPool": "pooling.first_order_pool",
    "LogProgress": "progress",
    "Model": "models.model",
    "Pool": "pooling.pool",
    "Prediction": "inference.predict",
    "Progress": "progress",
    "SearchResult": "inference.found",
    "SecondOrderPool": "pooling.pool",
    "SideBySidePool": "pooling.side_by_side",
    "TrainResult": "training.train",
    "TwoInputPool": "pooling.cross_pool",
    "attach": "models.attach",
    "compare": "comparing.compare",
    "create_model": "models.model",
    "create_pool": "pooling.methods",
    "embed": "inference.embed",
    "evaluate": "inference.evaluate",
    "explain": "explaining.explain",
    "export": "models.export",
    "find_duplicates": "inference.duplicates",
    "get_method": "pooling.methods",
    "list_methods": "pooling.methods",
    "list_stages": "pooling.registry",
    "load_comparison": "comparing.comparison",
    "parse_spec": "pooling.spec",
    "predict": "inference.predict",
    "register": "pooling.registry",
    "search": "inference.search",
    "train": "training.train",
}

_SUBMODULES = (
    "bench",
    "commands",
    "comparing",
    "data",
    "explaining",
    "functional",
    "inference",
    "models",
    "pooling",
    "progress",
    "sklearn",
    "system",
    "training",
)

__all__ = [
    "CompareOptions",
    "Comparison",
    "Config",
    "CrossPool",
    "Duplicates",
    "EmbedOptions",
    "Embeddings",
    "EvaluateOptions",
    "Evaluation",
    "Explanation",
    "FirstOrderPool",
    "LogProgress",
    "MissingDependencyError",
    "Model",
    "NonFiniteError",
    "NotFittedError",
    "PolycovError",
    "Pool",
    "Prediction",
    "Progress",
    "SearchResult",
    "SecondOrderPool",
    "SideBySidePool",
    "SpecError",
    "TrainResult",
    "TwoInputPool",
    "attach",
    "compare",
    "create_model",
    "create_pool",
    "embed",
    "evaluate",
    "explain",
    "export",
    "find_duplicates",
    "functional",
    "get_method",
    "list_methods",
    "list_stages",
    "load_comparison",
    "parse_spec",
    "predict",
    "register",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a name, or a submodule, when it is first used."""
    if name in _MODULES:
        try:
            value = getattr(importlib.import_module(f"polycov.{_MODULES[name]}"), name)
        except (ModuleNotFoundError, MissingDependencyError) as error:  # as with torch alone
            return _Missing(name, (), {"error": error})
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"polycov.{name}")
    raise AttributeError(f"module 'polycov' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Missing(type):
    """A stand-in for a name that needs packages that are not installed: using it says which."""

    error: ImportError

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _missing(cls) from cls.error

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(cls) from cls.error


def _missing(stand_in: _Missing) -> MissingDependencyError:
    error = stand_in.error
    if isinstance(error, MissingDependencyError):
        return error
    return MissingDependencyError(
        f"polycov.{stand_in.__name__} needs {error.name or error}. Install it with: pip install 'polycov[train]'"
    )
