"""Second-order pooling: local features to one compact vector built from their covariance."""

from polycov import functional
from polycov.errors import NonFiniteError, NotFittedError, PolycovError, SpecError
from polycov.methods import create_pool, get_method, list_methods
from polycov.model import create_model
from polycov.pool import FirstOrderPool, SecondOrderPool
from polycov.registry import list_stages
from polycov.spec import parse_spec

__version__ = "0.1.0"

__all__ = [
    "FirstOrderPool",
    "NonFiniteError",
    "NotFittedError",
    "PolycovError",
    "SecondOrderPool",
    "SpecError",
    "create_model",
    "create_pool",
    "functional",
    "get_method",
    "list_methods",
    "list_stages",
    "parse_spec",
]
