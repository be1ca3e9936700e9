"""A projection that tells classes apart: regularised discriminant directions, completed by principal components.

With S the scatter matrix of n training features and S_w their scatter within classes, that of x minus the mean of its
class, the directions w are the leading solutions of

    S w = μ (S_w + αI) w,    wᵀ (S_w + αI) w = n.

Distances between features projected this way are Mahalanobis distances of the covariance within classes, shrunk towards
a multiple of the identity. So what differs between images of one class counts little, in classes that were not seen
too, and the nearest mean of a class is regularised linear discriminant analysis. Directions with μ > 1 tell classes
apart, at most one less than there are classes; the others are principal components, scaled to similar variance. For
α → ∞ all are principal components; for α → 0 it is plain discriminant analysis, which overfits.

Everything follows from the mean, the scatter and the sum of each class. It is computed in the eigenvectors V of the
scatter, S = V diag(λ) Vᵀ, where S_w is diag(λ) − Σ n_c m_c m_cᵀ, with m_c the mean of a class minus that of all.

References: Friedman, "Regularized Discriminant Analysis", JASA 1989. Hatch, Kajarekar, Stolcke, "Within-Class
Covariance Normalization for SVM-Based Speaker Recognition", Interspeech 2006.
"""

import torch
from torch import Tensor

from polycov.pooling.post.cross_validation import choose_strength, class_counts
from polycov.pooling.post.pca import Spectrum, spectrum
from polycov.pooling.post.statistics import Statistics

STRENGTH = 0.1  # α over the mean squared length of a feature


def between_classes(statistics: Statistics, of: Spectrum) -> Tensor:
    """Returns √n_c m_c of each class, in the eigenvectors of the scatter, (K, r).

    Raises:
        PolycovError: if there are rows without labels.
    """
    counts = class_counts(statistics).to(of.mean.device)[:, None]
    totals = torch.stack([total for _, total in statistics.class_sums().values()])
    return of.project(totals - counts * of.mean) / counts.sqrt()


def class_components(statistics: Statistics, k: int, strength: float | None = STRENGTH) -> tuple[Tensor, Tensor]:
    """Returns the mean (D,) and the directions w (k', D), in float64: those with the largest μ first.

    k' is k, or the rank of the data if that is less. The sign of each direction makes its largest entry positive.

    Args:
        statistics: of the features, with labels.
        k: how many.
        strength: α over the mean squared length of a feature; None for the one with which a ridge classifier
            of the same features has the smallest generalised cross-validation error. It has the same α: its weights,
            (S + αI)⁻¹ times the means of the classes, span the same space as (S_w + αI)⁻¹ times them.

    Raises:
        PolycovError: if there are no rows, or rows without labels.
    """
    of = spectrum(statistics)
    between = between_classes(statistics, of)
    if strength is None:
        counts = class_counts(statistics).to(between)
        strength = choose_strength(of.values, between * counts.sqrt()[:, None], counts).strength
    alpha = strength * float(of.values.sum()) / statistics.samples
    within = torch.linalg.cholesky(torch.diag(of.values + alpha) - between.mT @ between)
    root = torch.linalg.solve_triangular(within, torch.diag(of.values.sqrt()), upper=False)
    leading = torch.linalg.eigh(root @ root.mT).eigenvectors[:, -k:].flip(1)
    directions = of.expand(torch.linalg.solve_triangular(within.mT, leading, upper=True)).mT
    peak = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return of.mean, directions * peak.sign() * statistics.samples**0.5
