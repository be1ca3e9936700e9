"""The stages as pure functions of tensors."""

from polycov.pooling.attention import attention_weights, simpool
from polycov.pooling.cross import cross_moment
from polycov.pooling.first_order import average, gem, maximum
from polycov.pooling.functions import matrix_log, matrix_power, matrix_sqrt
from polycov.pooling.functions.brownian import channel_distances, double_centre
from polycov.pooling.functions.composition import compose
from polycov.pooling.functions.lyapunov import lyapunov
from polycov.pooling.functions.minimax import minimax_factor, minimax_factors
from polycov.pooling.functions.newton_schulz import newton_schulz
from polycov.pooling.functions.polynomial import chebyshev, chebyshev_fit, chebyshev_value, polynomial
from polycov.pooling.functions.series import pade_sqrt, taylor_sqrt
from polycov.pooling.functions.sparse_inverse import sparse_inverse
from polycov.pooling.functions.tangent import log_cholesky
from polycov.pooling.kernel import kernel_error
from polycov.pooling.moments import bilinear, covariance, gaussian, second_moment, shrunk_covariance
from polycov.pooling.post.normalize import l2, signed_power, signed_sqrt
from polycov.pooling.tokens import as_tokens, maps_to_tokens
from polycov.pooling.vectors.buckets import bucket_sum
from polycov.pooling.vectors.count_sketch import count_sketch
from polycov.pooling.vectors.random_maclaurin import random_maclaurin, random_maclaurin_factored
from polycov.pooling.vectors.rotated import rotated
from polycov.pooling.vectors.tensor_sketch import tensor_sketch, tensor_sketch_factored
from polycov.pooling.vectors.triangle import triu

__all__ = [
    "as_tokens",
    "attention_weights",
    "average",
    "bilinear",
    "bucket_sum",
    "channel_distances",
    "chebyshev",
    "chebyshev_fit",
    "chebyshev_value",
    "compose",
    "count_sketch",
    "covariance",
    "cross_moment",
    "double_centre",
    "gaussian",
    "gem",
    "kernel_error",
    "l2",
    "log_cholesky",
    "lyapunov",
    "maps_to_tokens",
    "matrix_log",
    "matrix_power",
    "matrix_sqrt",
    "maximum",
    "minimax_factor",
    "minimax_factors",
    "newton_schulz",
    "pade_sqrt",
    "polynomial",
    "random_maclaurin",
    "random_maclaurin_factored",
    "rotated",
    "second_moment",
    "shrunk_covariance",
    "signed_power",
    "signed_sqrt",
    "simpool",
    "sparse_inverse",
    "taylor_sqrt",
    "tensor_sketch",
    "tensor_sketch_factored",
    "triu",
]
