"""Stage 3: a matrix as a vector."""

from polycov.pooling.vectors import count_sketch, random_maclaurin, rotated, tensor_sketch, triangle

__all__ = ["count_sketch", "random_maclaurin", "rotated", "tensor_sketch", "triangle"]
