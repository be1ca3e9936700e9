"""A whole classifier: backbone, reduction, pool, linear layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# First, so that a missing package is named with what to install.
from polycov.models.hub import ModelCard, ModelHubMixin, find_model_folder

# isort: split
from polycov.data.transforms import Preprocessing
from polycov.errors import MissingDependencyError, NonFiniteError, PolycovError, positive_int
from polycov.models.backbones import Backbone, stages_to_pool
from polycov.models.bounds import check_bounds
from polycov.models.description import describe, known_facts
from polycov.models.foreign import holds_reduction, load_foreign
from polycov.models.head import DEFAULT_CHANNELS, PoolingHead, Reduction
from polycov.models.model_card import model_card
from polycov.models.model_folder import ModelFolder
from polycov.models.modes import evaluation_mode
from polycov.models.tensors import State
from polycov.models.weights import OFFLINE_BACKBONE, load_exactly, read_weights
from polycov.pooling.methods import reads_class_token


class Model(PoolingHead, ModelHubMixin):
    """A backbone with a `PoolingHead`.

    Args:
        backbone: the source of local features; a module becomes a `Backbone`.
        pool: the name of a method, or a spec.
        num_classes: number of classes of the classifier.
        channels: number of channels of the reduction; see `PoolingHead`.
        reduction: "relu" or "linear"; see `PoolingHead`.
        seed: seed of the sketches.
        size: side of the images, if the backbone is a module.
        preprocessing: preprocessing of the images, if the backbone is a module; see `Backbone`.
        options: options of the method, such as ``dim``.

    Attributes:
        classes: their names.
        preprocessing: how images are prepared for it.
        about: what else its model card says: data, result, license.
        reduction_has_weights: whether its reduction was loaded with the weights of the backbone.
    """

    classifier: nn.Linear

    def __init__(
        self,
        backbone: nn.Module,
        pool: str,
        num_classes: int,
        channels: int | None = DEFAULT_CHANNELS,
        *,
        reduction: Reduction = "relu",
        seed: int = 0,
        size: int | None = None,
        preprocessing: Preprocessing | None = None,
        **options: Any,
    ) -> None:
        positive_int("the classifier", "num_classes", num_classes)
        if not isinstance(backbone, Backbone):
            backbone = Backbone(backbone, size=size, preprocessing=preprocessing)
        elif size is not None or preprocessing is not None:
            raise PolycovError("A Backbone has its own size and preprocessing: set them when you make it.")
        if reads_class_token(pool) and not backbone.prefix_tokens:
            raise PolycovError(
                f"The pool {pool!r} reads a class token, and the backbone {backbone.name!r} gives none: use a "
                "transformer that has one, without stage, made by create_model or with Backbone(…, keep_prefix=True)."
            )
        super().__init__(
            backbone.channels_for(pool),
            pool,
            num_classes,
            channels,
            reduction=reduction,
            seed=seed,
            prefix_tokens=backbone.prefix_tokens,
            **options,
        )
        self.backbone = backbone
        self.reduction_has_weights = False
        self.classes = [str(i) for i in range(num_classes)]
        self.preprocessing = backbone.preprocessing()
        self.about: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        """Where the model computes; `to` moves it."""
        return self.classifier.weight.device

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
        """Returns the probabilities of the classes, (B, num_classes), in evaluation mode, on the model's device.

        Args:
            images: (B, 3, H, W), on any device.
            mirror: average over each image and its mirror image.

        Raises:
            NonFiniteError: if the model gives NaN or Inf.
        """
        with evaluation_mode(self):
            return probabilities(self, images.to(self.device), mirror)

    def describe(self) -> dict[str, Any]:
        """Returns what a saved model says of itself: how to make it again, its input and output, as plain values.

        Raises:
            PolycovError: if ``classes`` are not as many names as the classifier has outputs.
        """
        return describe(self.backbone, self, self.classes, self.preprocessing) | self.about

    # Overrides of huggingface_hub's save_pretrained and push_to_hub, and the methods these call.

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Writes the model into a folder, with a card; see huggingface_hub for the options.

        Raises:
            PolycovError: if it cannot be made again from a folder; nothing is changed then.
        """
        self.check_saveable()  # before huggingface_hub removes an old config.json
        return super().save_pretrained(save_directory, **options)

    def check_saveable(self) -> None:
        """Refuses a model that a folder cannot hold.

        Raises:
            PolycovError: if its backbone is a module, or ``classes`` do not fit.
        """
        self.describe()
        if not self.backbone.registered:
            raise PolycovError(
                f"Cannot save a model whose backbone is the module {self.backbone.name}: {ModelFolder.CONFIG} cannot "
                "rebuild it. Register it with timm's register_model and pass its name as backbone, or save "
                "model.state_dict()."
            )

    def _save_pretrained(self, save_directory: Path) -> None:
        ModelFolder(save_directory).write(self.describe(), self.state_dict(), str(self.generate_model_card()))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Returns the card: data, method, accuracy, licence, and how to use the model."""
        return model_card(self.describe())

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads the model to the Hugging Face hub; see huggingface_hub for the options.

        Raises:
            PolycovError: if the upload fails.
        """
        try:
            return super().push_to_hub(repo_id, **options)
        except PolycovError:
            raise
        except Exception as error:  # no connection, no token, no such repository: each raises its own kind
            raise PolycovError(f"Cannot upload to {repo_id!r}: {type(error).__name__} {error}") from error

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "Model":
        """Loads a saved model, in evaluation mode; no code in the folder is run.

        Args:
            pretrained_model_name_or_path: a folder written by `save_pretrained`, or of a finished run; or a name on the
                Hugging Face hub.
            options: download options: ``revision``, ``token``, ``cache_dir``, ``force_download``, ``local_files_only``.

        Raises:
            PolycovError: if there is no such model, it has a pickle, or its tensors do not fit.
        """
        folder = find_model_folder(pretrained_model_name_or_path, **options)
        description, tensors = folder.read()
        where = f"{folder.CONFIG} in {str(folder.path)!r}"
        try:
            model = _rebuild(description, tensors)
        except MissingDependencyError:
            raise
        except PolycovError as error:
            raise type(error)(f"Cannot rebuild the model of {where}. {error}") from error
        except Exception as error:  # a file from elsewhere can be wrong in any way
            raise PolycovError(f"Cannot rebuild the model of {where}: {type(error).__name__}: {error}.") from error
        load_exactly(model, tensors, f"{folder.WEIGHTS} in {str(folder.path)!r}")
        return model.eval()


def _rebuild(description: dict[str, Any], tensors: State) -> Model:
    """The model of a description, with random weights in the dtype of ``tensors``."""
    preprocessing = Preprocessing.from_dict(description["preprocessing"])
    check_bounds(description, tensors)
    model = create_model(**description["model"], weights="none")
    model.preprocessing, model.classes = preprocessing, description["classes"]
    model.about = known_facts(description)
    model.describe()  # refuses classes that are not names
    dtype = tensors.get("classifier.weight", torch.zeros(())).dtype
    return model.to(dtype) if dtype.is_floating_point else model


def probabilities(logits: Callable[[Tensor], Tensor], images: Tensor, mirror: bool) -> Tensor:
    """Returns the probabilities of the classes, (B, classes); with ``mirror`` averaged with those of mirror images.

    Raises:
        NonFiniteError: if the logits have NaN or Inf.
    """
    outputs = [logits(view) for view in ([images, images.flip(-1)] if mirror else [images])]
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise NonFiniteError("The model gives NaN or Inf for these images.")
    return torch.stack([output.softmax(-1) for output in outputs]).mean(0)


def create_model(
    backbone: str | nn.Module = OFFLINE_BACKBONE,
    *,
    pool: str = "ipccp-ts",
    num_classes: int,
    dim: int | None = None,
    channels: int | None = DEFAULT_CHANNELS,
    reduction: Reduction = "relu",
    weights: str = "auto",
    stage: int | str | None = None,
    last_stride: bool = True,
    size: int | None = None,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Makes a classifier from any backbone and any pool.

    Args:
        backbone: the name of a model registered with timm, or a module that returns maps or tokens; see `Backbone`.
        pool: the name of a method (`list_methods`), or a spec.
        num_classes: number of classes of the classifier.
        dim: dimension of the pooled feature, where the method leaves it free.
        channels: channels to which local features are reduced; 0 for no reduction; None for the default of a probe, see
            `polycov.models.head.default_channels`.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        weights: backbone weights: "auto", "timm", "none" or a file; see `Backbone`. A file may also be a published
            fast-MPN-COV ResNet, with its reduction and, where it fits, its classifier; or the ``model.safetensors`` of
            a run, whose backbone and reduction are used.
        stage: an earlier stage of the backbone, or several; see `Backbone`. Stages that the pool names stand beside it.
        last_stride: False for a last stage without stride; see `Backbone`.
        size: side of the images, for ``stage="auto"``, transformers and modules; see `Backbone`.
        preprocessing: preprocessing of the images; see `Backbone`.
        seed: seed of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Raises:
        PolycovError: on an unknown name, weights that do not fit, or a number out of range.
    """
    state = None if weights in ("auto", "timm", "none") else read_weights(weights)
    foreign = state is not None and holds_reduction(state)
    source = Backbone(
        backbone,
        weights="none" if foreign else weights,
        stage=stages_to_pool(pool, stage),
        last_stride=last_stride,
        size=size,
        keep_prefix=reads_class_token(pool),
        preprocessing=preprocessing,
    )
    model = Model(source, pool, num_classes, channels, reduction=reduction, seed=seed, dim=dim, **options)
    if state is not None and foreign:
        load_foreign(model, model.pool, state, f"The file {Path(weights).name!r}")
        model.reduction_has_weights = True
    return model
