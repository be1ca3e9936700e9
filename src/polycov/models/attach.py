"""Second-order pooling in a timm model that you already have."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.models.head import DEFAULT_CHANNELS, PoolingHead, Reduction, make_classifier
from polycov.models.local_features import as_local_features, local_channels
from polycov.models.modes import evaluation_mode
from polycov.pooling.methods import stage_names

_TIMM_CONTRACT = ("forward_features", "forward_head", "reset_classifier", "num_features", "num_classes")


class Attached:
    """The methods of a timm model that concern its head, in front of the class of a model whose pooling was replaced.

    ``forward_features`` and ``num_features``, the channels of its output, are the model's own; ``head_hidden_size`` is
    the size of the pooled feature.
    """

    pool_head: PoolingHead
    num_classes: int
    head_hidden_size: int
    unpooled = False

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns the logits of the output of ``forward_features``; with ``pre_logits`` the pooled feature."""
        head = self.pool_head
        if self.unpooled:
            return x
        x = head.dropout(head.pool(head.reduce(as_local_features(self, x))))
        return x if pre_logits else head.classifier(x)

    def get_classifier(self) -> nn.Module:
        """Returns the linear classifier."""
        return self.pool_head.classifier

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Puts a new classifier behind the pool; with 0 classes the model returns the pooled feature.

        Args:
            num_classes: number of classes of the new classifier.
            global_pool: None keeps the pool. "", with 0 classes, removes it: the model returns local features as
                ``forward_features`` does.

        Raises:
            PolycovError: on any other pool; use `polycov.attach` for that.
        """
        if global_pool is not None and (global_pool or num_classes):
            raise PolycovError(
                f"Cannot reset the pool to {global_pool!r} with {num_classes} classes: use polycov.attach(model, …)."
            )
        like = next(self.parameters())  # type: ignore[attr-defined]
        self.pool_head.classifier = make_classifier(self.head_hidden_size, num_classes).to(like.device, like.dtype)
        self.unpooled = num_classes == 0 and (self.unpooled or global_pool == "")
        self.num_classes = num_classes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For copies and pickles: the class is made here, so it cannot be imported by its name."""
        return _empty, (type(self).__mro__[2],), self.__dict__


@functools.cache
def _attached_class(base: Any) -> Any:
    return type(f"Attached{base.__name__}", (Attached, base), {"__module__": __name__})


def _empty(base: Any) -> Any:
    attached = _attached_class(base)
    return attached.__new__(attached)


def attach(
    model: Any,
    pool: str,
    *,
    dim: int | None = None,
    num_classes: int | None = None,
    channels: int | None = DEFAULT_CHANNELS,
    reduction: Reduction = "relu",
    seed: int = 0,
    **options: Any,
) -> Any:
    """Replaces the pooling and the classifier of a timm model by a reduction, a pool and a new classifier.

    The model is changed in place. It keeps its class, its weights under their names, and timm's contract:
    ``forward_features``, ``forward_head(x, pre_logits=…)``, ``num_features``, ``head_hidden_size``, ``num_classes``,
    ``get_classifier`` and ``reset_classifier``. The new part is called ``pool_head``.

    Args:
        model: a classifier from timm: ResNet, EfficientNet, ConvNeXt, ViT, Swin and others of their form.
        pool: the name of a method, or a spec.
        dim: dimension of the pooled feature, where the method leaves it free.
        num_classes: number of classes of the new classifier; by default as many as the model has.
        channels: channels to which local features are reduced; 0 for no reduction; None for the default of a probe, see
            `polycov.models.head.default_channels`.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        seed: seed of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Returns:
        The model.

    To find the old head, an image goes through the model: every child that ``forward_features`` does not use is
    removed, including a norm or a convolution after the old pooling.

    Raises:
        PolycovError: if it is not such a model, it gives no local features, or on an unknown method or a number out of
            range; the model is then unchanged.
    """
    if stage_names(pool) != (None,):
        raise PolycovError(f"attach pools the last layer, and {pool!r} names stages: use polycov.create_model.")
    missing = [name for name in _TIMM_CONTRACT if not hasattr(model, name)]
    if missing:
        raise PolycovError(f"Expected a classifier from timm, got {type(model).__name__}, which has no {missing[0]}.")
    if hasattr(model, "_orig_mod"):
        raise PolycovError("This model is compiled. Attach the pool first, then compile.")
    old_head = _unused_children(model)
    if num_classes is None:
        num_classes = model.num_classes
    drop = _drop_rate(model, old_head)
    head = PoolingHead(
        model.num_features, pool, num_classes, channels, reduction=reduction, seed=seed, drop=drop, dim=dim, **options
    )
    _replace_head(model, old_head, head, num_classes)
    return model


def _replace_head(model: Any, old_head: list[str], head: PoolingHead, num_classes: int) -> None:
    like = next(model.parameters())
    head.to(like.device, like.dtype if like.dtype.is_floating_point else None)
    for name in old_head:
        setattr(model, name, nn.Identity())
    base: Any = type(model)
    model.__class__ = base if issubclass(base, Attached) else _attached_class(base)
    model.pool_head = head.train(model.training)
    model.num_classes, model.unpooled = num_classes, False
    model.head_hidden_size = head.pool.out_features
    for name in ("pretrained_cfg", "default_cfg"):  # what timm skips in a checkpoint with other classes
        if isinstance(getattr(model, name, None), dict):
            setattr(model, name, {**getattr(model, name), "classifier": "pool_head.classifier"})


def _unused_children(model: Any) -> list[str]:
    """Returns the names of the children that ``forward_features`` does not use: the old head.

    Raises:
        PolycovError: if it fails, or does not give local features of ``num_features`` channels.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    required_grad = [parameter.requires_grad for parameter in parameters]
    name = type(model).__name__
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with evaluation_mode(model), torch.enable_grad():
            features = as_local_features(model, model.forward_features(_random_image(model)))
            channels = local_channels(name, features)
            gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
    except PolycovError:
        raise
    except Exception as error:  # a network can raise anything
        raise PolycovError(f"forward_features of {name} fails on an image: {type(error).__name__} {error}") from error
    finally:
        for parameter, value in zip(parameters, required_grad, strict=True):
            parameter.requires_grad_(value)
    if channels != model.num_features:
        raise PolycovError(f"Expected {model.num_features} channels from {name}, its num_features, got {channels}.")
    used = {id(p) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
    children = {child: list(module.parameters()) for child, module in model.named_children()}
    return [child for child, own in children.items() if own and not any(id(p) in used for p in own)]


def _random_image(model: Any) -> Tensor:
    """An image of the size that a model is made for."""
    like = next(model.parameters())
    config = getattr(model, "pretrained_cfg", None) or {}
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or tuple(config.get("input_size", ()))[1:]
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    return torch.rand(1, channels, *(size or (224, 224)), device=like.device, dtype=like.dtype)


def _drop_rate(model: Any, old_head: list[str]) -> float:
    """The dropout before the classifier, wherever a model keeps it."""
    rate = getattr(model, "drop_rate", 0.0)
    names = {*old_head, "head_drop", "pool_head", "head"}
    modules = [getattr(model, name) for name in names if isinstance(getattr(model, name, None), nn.Module)]
    rates = [inner.p for module in modules for inner in module.modules() if isinstance(inner, nn.Dropout)]
    return max([float(rate) if isinstance(rate, int | float) else 0.0, *rates])
