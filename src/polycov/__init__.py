"""Second-order pooling: local features to one compact vector built from their covariance."""

from typing import TYPE_CHECKING, Any

from polycov import functional
from polycov.errors import NonFiniteError, NotFittedError, PolycovError, SpecError
from polycov.pooling.methods import create_pool, get_method, list_methods
from polycov.pooling.pool import FirstOrderPool, SecondOrderPool
from polycov.pooling.registry import list_stages
from polycov.pooling.spec import parse_spec

if TYPE_CHECKING:
    from polycov.models.attach import attach
    from polycov.models.model import Model, create_model

__version__ = "0.1.0"

__all__ = [
    "FirstOrderPool",
    "Model",
    "NonFiniteError",
    "NotFittedError",
    "PolycovError",
    "SecondOrderPool",
    "SpecError",
    "attach",
    "create_model",
    "create_pool",
    "functional",
    "get_method",
    "list_methods",
    "list_stages",
    "parse_spec",
]


def __getattr__(name: str) -> Any:
    """What needs more than torch is imported when it is asked for."""
    if name == "attach":
        from polycov.models.attach import attach

        return attach
    if name in ("Model", "create_model"):
        from polycov.models import model

        return getattr(model, name)
    raise AttributeError(f"module 'polycov' has no attribute {name!r}")
