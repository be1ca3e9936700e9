"""Images with classes: one argument names them, in any layout."""

from polycov.errors import MissingDependencyError

try:
    from polycov.data.images import ImageData, Samples
    from polycov.data.read import read_data
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"Reading images needs {error.name}. Install it with: pip install 'polycov[train]'"
    ) from error

__all__ = ["ImageData", "Samples", "read_data"]
