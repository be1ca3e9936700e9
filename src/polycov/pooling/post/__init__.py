"""Stages that may follow the vector: normalisation of samples, and fitted scales and projections."""

from polycov.pooling.post import balance, normalize, project

__all__ = ["balance", "normalize", "project"]
