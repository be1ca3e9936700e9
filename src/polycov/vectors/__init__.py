"""Stage 3: a symmetric matrix as a vector, and what may follow it."""

from polycov.vectors import count_sketch, normalize, project, random_maclaurin, tensor_sketch, triangle

__all__ = ["count_sketch", "normalize", "project", "random_maclaurin", "tensor_sketch", "triangle"]
