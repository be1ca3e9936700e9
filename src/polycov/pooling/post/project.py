"""A linear map fitted to training features in closed form: principal components."""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import NotFittedError, PolycovError, positive_int
from polycov.pooling.post.normalize import Post
from polycov.pooling.registry import register


class StreamingPCA:
    """Principal components in one pass over batches of rows.

    Up to D rows are kept as they are, and the Gram matrix is decomposed; beyond that only their number, mean and
    scatter matrix (D × D). Either way memory does not grow with the data past D × D numbers.
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.count = 0  # rows folded into the scatter matrix
        self.mean: Tensor | None = None
        self.scatter: Tensor | None = None

    @property
    def samples(self) -> int:
        """The number of rows seen."""
        return self.count + sum(len(rows) for rows in self.kept)

    def update(self, rows: Tensor) -> None:
        """Takes a batch of rows, (B, D)."""
        if not len(rows):
            return
        self.kept.append(rows.detach())
        if sum(len(k) for k in self.kept) > rows.shape[1]:
            self._fold()

    def _fold(self) -> None:
        rows = torch.cat(self.kept).double()
        self.kept = []
        mean = rows.mean(0)
        centred = rows - mean
        scatter = centred.mT @ centred
        if self.mean is None or self.scatter is None:
            self.count, self.mean, self.scatter = len(rows), mean, scatter
            return
        total = self.count + len(rows)  # the scatter of a union: both scatters and that of the two means
        gap = mean - self.mean
        self.scatter += scatter + torch.outer(gap, gap) * (self.count * len(rows) / total)
        self.mean = self.mean + gap * (len(rows) / total)
        self.count = total

    def components(self, k: int) -> tuple[Tensor, Tensor]:
        """Returns the mean (D,) and the k leading components (k, D), rows of unit length, in float64.

        The sign of each is chosen so that its largest entry is positive.

        Raises:
            PolycovError: if there were fewer than k rows, or fewer than k columns.
        """
        if self.scatter is not None and self.kept:
            self._fold()
        if self.scatter is not None and self.mean is not None:
            mean, columns = self.mean, len(self.mean)
            _check_rank(k, self.samples, columns)
            basis = torch.linalg.eigh(self.scatter).eigenvectors[:, -k:].flip(1).mT
        else:
            rows = torch.cat(self.kept).double() if self.kept else torch.empty(0, 0)
            _check_rank(k, *rows.shape)
            mean = rows.mean(0)
            centred = rows - mean
            vectors = torch.linalg.eigh(centred @ centred.mT).eigenvectors[:, -k:].flip(1)
            # The last direction may have no variance, so that its image is 0: QR completes the basis.
            image = centred.mT @ vectors  # (D, k), orthogonal columns
            basis = torch.linalg.qr(image).Q.mT
        peak = basis.gather(1, basis.abs().argmax(1, keepdim=True))
        return mean, basis * peak.sign()


def _check_rank(k: int, samples: int, columns: int) -> None:
    if k > min(samples, columns):
        raise PolycovError(
            f"project({k}) cannot be fitted on {samples} training features of {columns} dimensions: "
            f"it needs at least {k} of each."
        )


@register("post", "project", "project(5)")
class Project(Post):
    """A linear map to ``dim`` dimensions, fitted by ``pool.fit(batches)`` (PCA) and trainable from there.

    A random sketch must be wide because it knows nothing of the data; a fitted map need not be.

    Args:
        features: of the input.
        dim: of the output.
    """

    fitted: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__(positive_int("project", "dim", dim))
        if dim > features:
            raise PolycovError(f"Expected dim of project to be at most the {features} features before it, got {dim}.")
        self.weight = nn.Parameter(torch.zeros(dim, features))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._known_fitted = False  # what the buffer says, known without asking the device

    @torch.no_grad()
    def set_components(self, mean: Tensor, components: Tensor) -> None:
        """Makes the map x ↦ components (x − mean)."""
        self.weight.copy_(components)
        self.bias.copy_(-(components @ mean))
        self.fitted.fill_(True)
        self._known_fitted = True

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._known_fitted = not self.fitted.is_meta and bool(self.fitted)

    def forward(self, x: Tensor) -> Tensor:
        self._known_fitted = self._known_fitted or bool(self.fitted)
        if not self._known_fitted:
            raise NotFittedError(
                f"The stage project({self.out_features}) is not fitted. Call pool.fit(batches) with batches of "
                "training features, or load the state_dict of a fitted pool."
            )
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))
