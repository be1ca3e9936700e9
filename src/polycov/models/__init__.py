"""Classifiers: backbone, reduction, pool, linear layer; saved, exported, or attached to a timm model."""
