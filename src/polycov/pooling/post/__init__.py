"""Stages that may follow the vector: elementwise normalisation and a fitted projection."""

from polycov.pooling.post import normalize, project

__all__ = ["normalize", "project"]
