"""A classifier of two streams of local features, joined by a pool of two inputs."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from polycov.errors import PolycovError
from polycov.models.backbones import Backbone
from polycov.models.head import DEFAULT_CHANNELS, Reduction, make_classifier, make_reduction, reduce_features
from polycov.pooling.methods import create_pool


class TwoStreamModel(nn.Module):
    """Two backbones, or two reductions of one → pool of two inputs → linear classifier.

    Args:
        first: a `Backbone`, or a module that returns maps or tokens; it becomes one.
        second: the same for the second stream; None for a second reduction of the features of the first.
        pool: a method of two inputs (`polycov.list_methods(inputs=2)`), or a spec that begins with ``cross``.
        num_classes: number of classes of the classifier; 0 for none.
        channels: channels that each stream is reduced to; 0 for no reduction.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        seed: seed of the sketches.
        size: side of the images, if a backbone is a module.
        options: options of the method, such as ``dim``.

    Maps of different sizes are averaged down to the smaller one.

    Example:
        >>> network = nn.Conv2d(3, 24, 8, stride=8)
        >>> model = TwoStreamModel(network, pool="mcb", num_classes=5, channels=(16, 8), dim=64, size=32)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 5])

    Reference: Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015.
    """

    def __init__(
        self,
        first: nn.Module,
        second: nn.Module | None = None,
        *,
        pool: str = "cross-bilinear",
        num_classes: int,
        channels: tuple[int, int] = (DEFAULT_CHANNELS, DEFAULT_CHANNELS),
        reduction: Reduction = "relu",
        seed: int = 0,
        size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.first = first if isinstance(first, Backbone) else Backbone(first, size=size)
        self.second = second if isinstance(second, Backbone | None) else Backbone(second, size=size)
        if self.second is None and 0 in channels:
            raise PolycovError("One backbone needs two reductions: expected positive channels, got 0.")
        widths = self.first.num_features, (self.second or self.first).num_features
        self.reductions = nn.ModuleList(make_reduction(reduction, w, c) for w, c in zip(widths, channels, strict=True))
        left, right = (c or w for w, c in zip(widths, channels, strict=True))
        self.pool = create_pool(pool, (left, right), seed=seed, **options)
        self.classifier = make_classifier(self.pool.out_features, num_classes)

    def local_features(self, images: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the reduced local features of both streams, at the same locations.

        Args:
            images: input of the first backbone, and of the second if it has none of its own.
            others: input of the second backbone.

        Raises:
            PolycovError: if there are others, but no second backbone.
        """
        if others is not None and self.second is None:
            raise PolycovError("This model has one backbone, and takes one batch of images.")
        left = self.first(images)
        right = left if self.second is None else self.second(images if others is None else others)
        left, right = _same_size(left, right)
        return reduce_features(self.reductions[0], left), reduce_features(self.reductions[1], right)

    def forward(self, images: Tensor, others: Tensor | None = None) -> Tensor:
        """Returns the logits, (B, num_classes); see `local_features` for the arguments."""
        return self.classifier(self.pool(*self.local_features(images, others)))


def _same_size(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (B, C, H, W), the larger averaged down to the size of the smaller; tokens as they are."""
    if left.ndim != 4 or right.ndim != 4 or left.shape[2:] == right.shape[2:]:
        return left, right
    size = min(left.shape[2], right.shape[2]), min(left.shape[3], right.shape[3])
    return adaptive_avg_pool2d(left, size), adaptive_avg_pool2d(right, size)
