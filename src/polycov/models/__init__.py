"""Classifiers: backbone, reduction, pool, linear layer; saved, exported, attached."""
