"""Second-order pooling as a scikit-learn transformer of NumPy arrays."""

import operator
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from polycov.errors import MissingDependencyError, PolycovError, known, positive_int
from polycov.pooling.batches import Repeatable
from polycov.pooling.methods import create_pool, method_options
from polycov.system.devices import choose_device

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_array, check_is_fitted
except ImportError as error:
    raise MissingDependencyError(
        f"polycov.sklearn needs scikit-learn ({error}). Install it with: pip install 'polycov[sklearn]'"
    ) from error

Array = np.ndarray[Any, Any]
Layout = Literal["tokens", "signals"]


class SecondOrderTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Pools the local features of each sample into one vector.

    Args:
        method: the name of a method (`polycov.list_methods`), or a spec such as ``covariance | log(exact) | triu``.
        dim: the dimension of the vector; ignored by methods of fixed dimension.
        layout: of three-dimensional arrays: "tokens" is (samples, locations, channels); "signals" is
            (samples, channels, times), as in pyRiemann. Four-dimensional arrays are maps,
            (samples, channels, height, width).
        seed: determines the sketch.
        batch_size: samples per batch.
        device: "cpu", "cuda", "mps", or "auto" for the best available.

    Attributes:
        pool_: the pool, a torch Module.
        n_features_in_: the number of channels.

    Float32 stays float32; other types become float64. ``fit`` fits what a method fits to the samples, such as the
    projection of ``ipccp-fit``; other methods only learn the number of channels.

    Example:
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.linear_model import RidgeClassifier
        >>> x, y = np.random.default_rng(0).normal(size=(20, 30, 4)), np.arange(20) % 2
        >>> x[y == 1, :, 1] += x[y == 1, :, 0]
        >>> pipeline = make_pipeline(SecondOrderTransformer("isqrt-cov"), RidgeClassifier())
        >>> pipeline.fit(x, y).score(x, y)
        1.0
    """

    def __init__(
        self,
        method: str = "ipccp-cs",
        *,
        dim: int | None = None,
        layout: Layout = "tokens",
        seed: int = 0,
        batch_size: int = 64,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.dim = dim
        self.layout = layout
        self.seed = seed
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any, y: Any = None, weights: Any = None) -> "SecondOrderTransformer":
        """Creates the pool, and fits its projection if it has one.

        Args:
            X: (samples, locations, channels), or according to ``layout``.
            y: classes (samples,), for projections that are fitted to them; else ignored.
            weights: optional, (samples, locations): how much each location counts, or a boolean mask.

        Raises:
            PolycovError: if the shape is wrong, the method unknown, a number out of range or the device unavailable.
        """
        array = self._checked(X)
        self.n_features_in_ = self._channels(array)
        dim = self.dim if "dim" in method_options(self.method) else None
        seed = operator.index(self.seed) if isinstance(self.seed, np.integer) else self.seed
        pool = create_pool(self.method, self.n_features_in_, dim=dim, seed=seed)
        self.pool_ = pool.to(choose_device(self.device)).eval()
        if pool.fittable:
            known_classes = y is not None and np.shape(y) == array.shape[:1]
            classes = torch.from_numpy(np.unique(y, return_inverse=True)[1]) if known_classes else None
            self.pool_.fit(Repeatable(lambda: self._batches(array, weights, classes)))
        self._n_features_out = pool.out_features
        return self

    def fit_transform(self, X: Any, y: Any = None, weights: Any = None) -> Array:
        """Fits and transforms, both with the weights."""
        return self.fit(X, y, weights).transform(X, weights)

    def transform(self, X: Any, weights: Any = None) -> Array:
        """Returns the vectors, (samples, dimensions).

        Args:
            X: (samples, locations, channels), or according to ``layout``.
            weights: optional, (samples, locations), or (samples, height, width) for maps: how much each location
                counts, at least 0, or a boolean mask.

        Raises:
            NotFittedError: (scikit-learn's) before ``fit``.
            PolycovError: if the number of channels differs from ``fit``.
        """
        check_is_fitted(self, "pool_")
        array = self._checked(X)
        if self._channels(array) != self.n_features_in_:
            raise PolycovError(
                f"Expected {self.n_features_in_} channels, as in fit, got {self._channels(array)} in an array of shape "
                f"{array.shape} with layout={self.layout!r}."
            )
        with torch.inference_mode():
            vectors = [self.pool_(batch, some).cpu() for batch, some, _ in self._batches(array, weights)]
            result: Array = torch.cat(vectors).numpy()
        return result

    def _checked(self, X: Any) -> Array:
        positive_int("SecondOrderTransformer", "batch_size", self.batch_size)
        if self.layout not in ("tokens", "signals"):
            raise PolycovError(f"Unknown layout {self.layout!r}. {known(str(self.layout), ('tokens', 'signals'))}")
        dtypes = [np.float64, np.float32]
        array: Array = check_array(X, dtype=dtypes, ensure_2d=False, allow_nd=True, estimator=self)
        if array.ndim not in (3, 4) or 0 in array.shape:
            shapes = {"tokens": "(samples, locations, channels)", "signals": "(samples, channels, times)"}
            raise PolycovError(
                f"Expected an array of shape {shapes[self.layout]} or (samples, channels, height, width), "
                f"got {array.shape}."
            )
        return array

    def _channels(self, array: Array) -> int:
        return int(array.shape[2 if array.ndim == 3 and self.layout == "tokens" else 1])

    def _batches(
        self, array: Array, weights: Any, classes: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Batches, with the weights and the classes of their samples if there are any."""
        device = choose_device(self.device)
        if weights is not None and len(weights := np.asarray(weights)) != len(array):
            raise PolycovError(f"Expected the weights of {len(array)} samples, got those of {len(weights)}.")
        for begin in range(0, len(array), self.batch_size):
            rows = slice(begin, begin + self.batch_size)
            batch = torch.from_numpy(np.require(array[rows], requirements=["C", "W"])).to(device)
            yield (
                batch.mT if array.ndim == 3 and self.layout == "signals" else batch,
                None if weights is None else torch.tensor(weights[rows], device=device),
                None if classes is None else classes[rows],
            )

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn which arrays it accepts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.requires_fit = True
        return tags
