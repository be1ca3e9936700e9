"""A model that is not trained, its backbone run by the fastest engine that computes the same."""

from typing import Any

import torch
from torch import Tensor, nn

from polycov.models.backends.frozen import Backend, FrozenBackbone
from polycov.models.model import Model, probabilities
from polycov.models.modes import evaluation_mode


class FrozenModel(nn.Module):
    """A model for predictions; see `FrozenBackbone` for what runs its backbone.

    Args:
        model: the model, which must not change afterwards.
        backend: what runs its backbone.
        options: further options of `FrozenBackbone`.
    """

    def __init__(self, model: Model, backend: Backend = "auto", **options: Any) -> None:
        super().__init__()
        self.model = model
        self.local_features = FrozenBackbone(model.backbone, backend, **options)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits of images (B, 3, H, W), (B, num_classes)."""
        (features,) = self.local_features(images)
        return self.model.classify(features)

    @torch.inference_mode()
    def predict(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Returns the probabilities of the classes, (B, num_classes), as `Model.predict` does.

        Raises:
            NonFiniteError: if the model gives NaN or Inf.
        """
        with evaluation_mode(self):
            return probabilities(self, images.to(self.model.device), mirror)
