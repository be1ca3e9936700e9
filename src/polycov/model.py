"""A whole classifier: backbone, reduction, pool, linear layer."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polycov.backbones import Backbone
from polycov.errors import positive_int
from polycov.methods import create_pool
from polycov.vectors.buckets import root_two
from polycov.weights import OFFLINE_BACKBONE, State, load_exactly, read_weights


class Model(nn.Module):
    """Backbone → 1×1 convolution to ``channels``, BatchNorm, ReLU → pool → linear classifier.

    Args:
        backbone: the source of local features.
        pool: the name of a method, or a spec.
        num_classes: of the classifier.
        channels: of the reduction; 0 for none.
        seed: of the sketches.
        options: of the method, such as ``dim``.
    """

    def __init__(
        self, backbone: Backbone, pool: str, num_classes: int, channels: int = 256, *, seed: int = 0, **options: Any
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        if channels:
            positive_int("the reduction", "channels", channels)
            self.reduction: nn.Module = nn.Sequential(
                nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
            )
        else:
            self.reduction = nn.Identity()
        self.pool = create_pool(pool, channels or width, seed=seed, **options)
        self.classifier = nn.Linear(self.pool.out_features, positive_int("the classifier", "num_classes", num_classes))

    def local_features(self, images: Tensor) -> Tensor:
        """Returns the reduced local features of images: maps (B, C, H, W), or tokens (B, N, C)."""
        features = self.backbone(images)
        if features.ndim == 4 or isinstance(self.reduction, nn.Identity):
            return self.reduction(features)
        return self.reduction(features.mT.unsqueeze(-1)).squeeze(-1).mT  # tokens as maps of width 1, and back

    def embed(self, images: Tensor) -> Tensor:
        """Returns the pooled features of images, (B, D)."""
        return self.pool(self.local_features(images))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits of images (B, 3, H, W), (B, num_classes)."""
        return self.classifier(self.embed(images))

    @torch.inference_mode()
    def predict(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Returns the probabilities of the classes, (B, num_classes); with ``mirror`` the mean over each image and its
        mirror image. The mode of the model, training or evaluation, is left as it was.
        """
        was_training = self.training
        self.eval()
        try:
            probabilities = self(images).softmax(-1)
            return (probabilities + self(images.flip(-1)).softmax(-1)) / 2 if mirror else probabilities
        finally:
            self.train(was_training)


def create_model(
    backbone: str = OFFLINE_BACKBONE,
    *,
    pool: str = "ipccp-ts",
    num_classes: int,
    dim: int | None = None,
    channels: int = 256,
    weights: str = "auto",
    stage: int | None = None,
    last_stride: bool = True,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Makes a classifier out of any backbone of timm and any pool.

    Args:
        backbone: a name in timm.
        pool: the name of a method (`list_methods`), or a spec.
        num_classes: of the classifier.
        dim: of the pooled feature, where it is free.
        channels: the local features are reduced to; 0 for no reduction.
        weights: of the backbone: "auto", "timm", "none" or a file; see `Backbone`. A file may also be a published
            fast-MPN-COV ResNet, with its reduction and, where it fits, its classifier.
        stage: an earlier stage of the backbone; see `Backbone`.
        last_stride: False for a last stage without stride; see `Backbone`.
        seed: of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Raises:
        PolycovError: on an unknown name, weights that do not fit, or a number out of range.
    """
    state = None if weights in ("auto", "timm", "none") else read_weights(weights)
    published = state is not None and "layer_reduce.weight" in state
    source = Backbone(backbone, weights="none" if published else weights, stage=stage, last_stride=last_stride)
    model = Model(source, pool, num_classes, channels, seed=seed, dim=dim, **options)
    if state is not None and published:
        load_exactly(model, from_fast_mpn_cov(state, model), f"The file {Path(weights).name!r}")
    return model


def from_fast_mpn_cov(state: State, model: Model) -> State:
    """Returns the state of a published fast-MPN-COV ResNet under the names of a model.

    Its classifier is taken along if the model pools by a triangle and has as many classes; otherwise the model's own
    stays. It works on a triangle without √2, so weights off the diagonal are divided by √2: the logits are the same.
    """
    names = {"layer_reduce.": "reduction.0.", "layer_reduce_bn.": "reduction.1.", "fc.": "classifier."}
    renamed: State = {}
    for name, tensor in state.items():
        prefix = next((p for p in names if name.startswith(p)), None)
        renamed[names[prefix] + name[len(prefix) :] if prefix else f"backbone.network.{name}"] = tensor
    own = model.state_dict()
    weight = renamed.get("classifier.weight")
    if weight is not None and model.pool.spec.endswith("| triu") and weight.shape == own["classifier.weight"].shape:
        rows, columns = torch.triu_indices(model.pool.channels, model.pool.channels)
        renamed["classifier.weight"] = weight / root_two(rows != columns, weight.dtype)
    else:
        renamed |= {name: tensor for name, tensor in own.items() if name.startswith("classifier.")}
    return renamed | {name: tensor for name, tensor in own.items() if name.startswith("pool.")}
