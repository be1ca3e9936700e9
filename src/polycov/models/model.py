"""A whole classifier: backbone, reduction, pool, linear layer."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from polycov.errors import NonFiniteError, PolycovError, known, positive_int
from polycov.models.backbones import Backbone
from polycov.models.weights import OFFLINE_BACKBONE, State, load_exactly, read_weights
from polycov.pooling.methods import create_pool
from polycov.pooling.pool import FirstOrderPool
from polycov.pooling.vectors.buckets import root_two

try:
    from huggingface_hub import ModelHubMixin
except ImportError as error:
    raise PolycovError(f"Models need timm ({error}). Install it with: pip install 'polycov[train]'") from error

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

Reduction = Literal["relu", "linear"]


class PoolingHead(nn.Module):
    """Local features → 1×1 convolution to ``channels``, BatchNorm, ReLU → pool → linear classifier.

    Args:
        width: channels of the local features.
        pool: the name of a method, or a spec.
        num_classes: of the classifier; 0 for none.
        channels: of the reduction; 0 for none. None: as a probe wants it, none for first-order pools, else 128 or as
            many as there are.
        reduction: "relu" as above, or "linear", a 1×1 convolution with bias alone, such as principal components.
        seed: of the sketches.
        drop: rate of dropout before the classifier.
        options: of the method, such as ``dim``.
    """

    def __init__(
        self,
        width: int,
        pool: str,
        num_classes: int,
        channels: int | None = 256,
        *,
        reduction: Reduction = "relu",
        seed: int = 0,
        drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if channels is None:
            first_order = isinstance(create_pool(pool, width, seed=seed, **options), FirstOrderPool)
            channels = 0 if first_order else min(128, width)
        self.reduction = _make_reduction(reduction, width, channels)
        self.pool = create_pool(pool, channels or width, seed=seed, **options)
        self.dropout = nn.Dropout(drop)
        self.classifier: nn.Module = make_classifier(self.pool.out_features, num_classes)

    def reduce(self, features: Tensor) -> Tensor:
        """Returns local features, maps (B, C, H, W) or tokens (B, N, C), reduced."""
        if features.ndim == 4 or isinstance(self.reduction, nn.Identity):
            return self.reduction(features)
        return self.reduction(features.mT.unsqueeze(-1)).squeeze(-1).mT  # tokens as maps of width 1, and back

    def classify(self, features: Tensor) -> Tensor:
        """Returns the logits of local features, (B, num_classes)."""
        return self.classifier(self.dropout(self.pool(self.reduce(features))))


def make_classifier(features: int, num_classes: int) -> nn.Module:
    """Returns a linear layer; or one that does nothing, for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    return nn.Linear(features, positive_int("the classifier", "num_classes", num_classes))


class Model(PoolingHead, ModelHubMixin):
    """A backbone with a `PoolingHead`.

    Args:
        backbone: the source of local features.
        pool: the name of a method, or a spec.
        num_classes: of the classifier.
        channels: of the reduction; see `PoolingHead`.
        reduction: "relu" or "linear"; see `PoolingHead`.
        seed: of the sketches.
        options: of the method, such as ``dim``.

    Attributes:
        classes: their names.
        preprocessing: how pictures are prepared for it.
        about: what else its model card says: data, result, license.
    """

    classifier: nn.Linear

    def __init__(
        self,
        backbone: Backbone,
        pool: str,
        num_classes: int,
        channels: int | None = 256,
        *,
        reduction: Reduction = "relu",
        seed: int = 0,
        **options: Any,
    ) -> None:
        positive_int("the classifier", "num_classes", num_classes)
        width = backbone.num_features
        super().__init__(width, pool, num_classes, channels, reduction=reduction, seed=seed, **options)
        self.backbone = backbone
        self.reduction_has_weights = False  # whether its reduction came with the weights of the backbone
        self.classes = [str(i) for i in range(num_classes)]
        self.preprocessing = backbone.preprocessing()
        self.about: dict[str, Any] = {}

    def local_features(self, images: Tensor) -> Tensor:
        """Returns the reduced local features of images: maps (B, C, H, W), or tokens (B, N, C)."""
        return self.reduce(self.backbone(images))

    def embed(self, images: Tensor) -> Tensor:
        """Returns the pooled features of images, (B, D)."""
        return self.pool(self.local_features(images))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits of images (B, 3, H, W), (B, num_classes)."""
        return self.classify(self.backbone(images))

    @torch.inference_mode()
    def predict(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Returns the probabilities of the classes, (B, num_classes); with ``mirror`` the mean over each image and its
        mirror image. The mode of the model, training or evaluation, is left as it was.

        Raises:
            NonFiniteError: if the model gives NaN or Inf.
        """
        was_training = self.training
        self.eval()
        try:
            return probabilities_of(self, images, mirror)
        finally:
            self.train(was_training)

    # Beneath huggingface_hub's save_pretrained, push_to_hub and from_pretrained.

    def _save_pretrained(self, save_directory: Path) -> None:
        from polycov.models.pretrained import write_pretrained

        write_pretrained(save_directory, self)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> "ModelCard":
        """Returns the card: data, method, accuracy, licence, and how to use the model."""
        from polycov.models.pretrained import model_card

        return model_card(self)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads the model to the Hugging Face hub; see huggingface_hub for the options.

        Raises:
            PolycovError: if it cannot.
        """
        try:
            return super().push_to_hub(repo_id, **options)
        except Exception as error:  # no network, no token, no such place: each has its own kind
            raise PolycovError(f"Cannot upload to {repo_id!r}: {type(error).__name__} {error}") from error

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "Model":
        """Makes a saved model again, in evaluation mode; no code of the folder is run.

        Args:
            pretrained_model_name_or_path: a folder written by `save_pretrained`, or of a finished run; or a name on the
                Hugging Face hub.
            options: of the download: ``revision``, ``token``, ``cache_dir``, ``force_download``, ``local_files_only``.

        Raises:
            PolycovError: if there is no such model, it has a pickle, or its arrays do not fit.
        """
        from polycov.models.pretrained import find_pretrained, read_pretrained

        return read_pretrained(find_pretrained(str(pretrained_model_name_or_path), **options))


def probabilities_of(logits: Callable[[Tensor], Tensor], images: Tensor, mirror: bool) -> Tensor:
    """Returns the probabilities of the classes, (B, classes); with ``mirror`` the mean with those of mirror images.

    Raises:
        NonFiniteError: if the logits have NaN or Inf.
    """
    found = [logits(view) for view in ([images, images.flip(-1)] if mirror else [images])]
    if not all(bool(one.isfinite().all()) for one in found):
        raise NonFiniteError("The model gives NaN or Inf for these pictures.")
    return torch.stack([one.softmax(-1) for one in found]).mean(0)


def create_model(
    backbone: str = OFFLINE_BACKBONE,
    *,
    pool: str = "ipccp-ts",
    num_classes: int,
    dim: int | None = None,
    channels: int | None = 256,
    reduction: Reduction = "relu",
    weights: str = "auto",
    stage: int | Literal["auto"] | None = None,
    last_stride: bool = True,
    size: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Makes a classifier out of any backbone of timm and any pool.

    Args:
        backbone: a name in timm.
        pool: the name of a method (`list_methods`), or a spec.
        num_classes: of the classifier.
        dim: of the pooled feature, where it is free.
        channels: the local features are reduced to; 0 for no reduction; None as in `Model`.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        weights: of the backbone: "auto", "timm", "none" or a file; see `Backbone`. A file may also be a published
            fast-MPN-COV ResNet, with its reduction and, where it fits, its classifier; or the ``model.safetensors`` of
            a run, of which backbone and reduction are taken.
        stage: an earlier stage of the backbone; see `Backbone`.
        last_stride: False for a last stage without stride; see `Backbone`.
        size: the side of the pictures, for ``stage="auto"`` and for transformers; see `Backbone`.
        seed: of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Raises:
        PolycovError: on an unknown name, weights that do not fit, or a number out of range.
    """
    state = None if weights in ("auto", "timm", "none") else read_weights(weights)
    published = state is not None and "layer_reduce.weight" in state
    ours = state is not None and any(name.startswith("backbone.network.") for name in state)
    source = Backbone(
        backbone, weights="none" if published or ours else weights, stage=stage, last_stride=last_stride, size=size
    )
    model = Model(source, pool, num_classes, channels, reduction=reduction, seed=seed, dim=dim, **options)
    if state is not None and (published or ours):
        model.reduction_has_weights = True
        renamed = from_fast_mpn_cov(state, model) if published else from_other_model(state, model)
        load_exactly(model, renamed, f"The file {Path(weights).name!r}")
    return model


def _make_reduction(kind: str, width: int, channels: int) -> nn.Module:
    if kind not in ("relu", "linear"):
        raise PolycovError(f"Unknown reduction {kind!r}. {known(kind, ('relu', 'linear'))}")
    if not channels:
        return nn.Identity()
    positive_int("the reduction", "channels", channels)
    if kind == "linear":
        return nn.Conv2d(width, channels, 1)
    return nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def from_other_model(state: State, model: Model) -> State:
    """Returns the backbone and reduction of another model, with the pool and classifier of this one."""
    theirs = {name: tensor for name, tensor in state.items() if name.startswith(("backbone.", "reduction."))}
    own = model.state_dict()
    return theirs | {name: tensor for name, tensor in own.items() if name.startswith(("pool.", "classifier."))}


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
