"""Images with classes: one argument names them, in any layout."""

from polycov.data.images import ImageData, Samples
from polycov.data.read import read_data

__all__ = ["ImageData", "Samples", "read_data"]
