"""Every stage as a pure function of tensors."""

from polycov.first_order import average, gem, maximum
from polycov.functions import matrix_log, matrix_power, matrix_sqrt
from polycov.functions.lyapunov import lyapunov
from polycov.functions.newton_schulz import newton_schulz
from polycov.functions.polynomial import chebyshev, chebyshev_fit, chebyshev_value, polynomial
from polycov.moments import as_tokens, bilinear, covariance, gaussian, second_moment
from polycov.vectors.buckets import bucket_sum
from polycov.vectors.count_sketch import count_sketch
from polycov.vectors.normalize import l2, signed_sqrt
from polycov.vectors.random_maclaurin import random_maclaurin, random_maclaurin_factored
from polycov.vectors.tensor_sketch import tensor_sketch, tensor_sketch_factored
from polycov.vectors.triangle import triu

__all__ = [
    "as_tokens",
    "average",
    "bilinear",
    "bucket_sum",
    "chebyshev",
    "chebyshev_fit",
    "chebyshev_value",
    "count_sketch",
    "covariance",
    "gaussian",
    "gem",
    "l2",
    "lyapunov",
    "matrix_log",
    "matrix_power",
    "matrix_sqrt",
    "maximum",
    "newton_schulz",
    "polynomial",
    "random_maclaurin",
    "random_maclaurin_factored",
    "second_moment",
    "signed_sqrt",
    "tensor_sketch",
    "tensor_sketch_factored",
    "triu",
]
