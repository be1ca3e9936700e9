"""Signals, as with pyRiemann: covariances of channels over time, in a scikit-learn pipeline.

    pip install 'polycov[sklearn]' pyriemann
    python examples/signals.py

Two states of four oscillating sources, mixed into 8 channels with noise: the states differ in the power of one source.
The log-Euclidean vector equals pyRiemann's tangent space at the identity; a sketch makes it any size you like.
"""

import numpy as np
from pyriemann.estimation import Covariances
from pyriemann.tangentspace import TangentSpace
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polycov.sklearn import SecondOrderTransformer


def recordings(count: int = 120, channels: int = 8, times: int = 250) -> tuple[np.ndarray, np.ndarray]:
    """Signals (count, channels, times), as pyRiemann takes them, and the state of each."""
    rng = np.random.default_rng(0)
    states = np.arange(count) % 2
    mixing = np.random.default_rng(1).normal(size=(channels, 4))
    phases = 2 * np.pi * (np.array([8, 10, 12, 20])[:, None] * np.arange(times) / 250 + rng.random((count, 4, 1)))
    power = np.where(states == 1, 1.5, 1.0)[:, None] * np.array([1, 0, 0, 0]) + np.array([0, 1, 1, 1])
    sources = power[:, :, None] * np.sin(phases)
    return mixing @ sources + 2 * rng.normal(size=(count, channels, times)), states


def main() -> dict[str, float]:
    """Prints and returns the accuracy of each pipeline, five-fold."""
    signals, states = recordings()
    first = {
        "pyRiemann: Covariances, TangentSpace": (Covariances("scm"), TangentSpace()),
        "polycov: log-euclidean": (SecondOrderTransformer("log-euclidean", layout="signals"),),
        "polycov: isqrt-cov": (SecondOrderTransformer("isqrt-cov", layout="signals"),),
        "polycov: average": (SecondOrderTransformer("average", layout="signals"),),
    }
    scores = {}
    for name, steps in first.items():
        pipeline = make_pipeline(*steps, StandardScaler(), LogisticRegression(max_iter=1000))
        scores[name] = cross_val_score(pipeline, signals, states).mean()
        print(f"{name:38} {100 * scores[name]:5.1f} %")
    return scores


if __name__ == "__main__":
    main()
