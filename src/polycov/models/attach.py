"""Second-order pooling in a model of timm that one already has."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from polycov.errors import PolycovError
from polycov.models.backbones import as_local, check_local
from polycov.models.model import PoolingHead, Reduction, make_classifier


class Attached:
    """What stands before the class of a timm model whose pooling was replaced: the methods that concern its head.

    ``forward_features`` and ``num_features``, the channels it gives, are the model's own; ``head_hidden_size`` is the
    size of the pooled feature.
    """

    pool_head: PoolingHead
    num_classes: int
    head_hidden_size: int
    unpooled = False

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns the logits of what ``forward_features`` gave; with ``pre_logits`` the pooled feature."""
        head = self.pool_head
        if self.unpooled:
            return x
        x = head.dropout(head.pool(head.reduce(as_local(self, x))))
        return x if pre_logits else head.classifier(x)

    def get_classifier(self) -> nn.Module:
        """Returns the linear classifier."""
        return self.pool_head.classifier

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Puts a new classifier behind the pool; 0 classes leave the pooled feature.

        Args:
            num_classes: of the new classifier.
            global_pool: None keeps the pool. "" leaves it out, for 0 classes: local features come out as
                ``forward_features`` gives them.

        Raises:
            PolycovError: on any other pool, which `polycov.attach` is for.
        """
        if global_pool is not None and (global_pool or num_classes):
            raise PolycovError(
                f"Cannot reset the pool to {global_pool!r} with {num_classes} classes: use polycov.attach(model, …)."
            )
        like = next(self.parameters())  # type: ignore[attr-defined]
        new = make_classifier(self.head_hidden_size, num_classes)
        self.pool_head.classifier = new.to(like.device, like.dtype)
        self.unpooled = num_classes == 0 and (self.unpooled or global_pool == "")
        self.num_classes = num_classes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For copies and pickles: the class is made here, so that it cannot be found by its name."""
        return _empty, (type(self).__mro__[2],), self.__dict__


@functools.cache
def _class(kind: Any) -> Any:
    return type(f"Attached{kind.__name__}", (Attached, kind), {"__module__": __name__})


def _empty(kind: Any) -> Any:
    made = _class(kind)
    return made.__new__(made)


def attach(
    model: Any,
    pool: str,
    *,
    dim: int | None = None,
    num_classes: int | None = None,
    channels: int | None = 256,
    reduction: Reduction = "relu",
    seed: int = 0,
    **options: Any,
) -> Any:
    """Replaces the pooling and the classifier of a model of timm by a reduction, a pool and a new classifier.

    The model is changed in place. It keeps its class, its weights under their names, and timm's contract:
    ``forward_features``, ``forward_head(x, pre_logits=…)``, ``num_features``, ``head_hidden_size``, ``num_classes``,
    ``get_classifier`` and ``reset_classifier``. What is new is called ``pool_head``.

    Args:
        model: a classifier of timm: ResNet, EfficientNet, ConvNeXt, ViT, Swin and others of their form.
        pool: the name of a method, or a spec.
        dim: of the pooled feature, where the method leaves it free.
        num_classes: of the new classifier; by default as many as the model has.
        channels: the local features are reduced to; 0 for no reduction; None as in `polycov.models.model.PoolingHead`.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        seed: of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Returns:
        The model.

    The head is found by looking: what of the model ``forward_features`` does not reach is taken away, a norm or a
    convolution behind the old pooling included. A picture goes through the model for it.

    Raises:
        PolycovError: if it is no such model, it gives no local features, or on an unknown method or a number out of
            range; the model is then as it was.
    """
    needed = ("forward_features", "forward_head", "reset_classifier", "num_features", "num_classes")
    missing = [name for name in needed if not hasattr(model, name)]
    if missing:
        raise PolycovError(f"Expected a classifier of timm, got {type(model).__name__}, which has no {missing[0]}.")
    if hasattr(model, "_orig_mod"):
        raise PolycovError("This model is compiled. Attach the pool first, then compile.")
    old = _unreached(model)
    classes = model.num_classes if num_classes is None else num_classes
    head = PoolingHead(
        model.num_features,
        pool,
        classes,
        channels,
        reduction=reduction,
        seed=seed,
        drop=_drop_rate(model, old),
        dim=dim,
        **options,
    )
    like = next(model.parameters())
    head.to(like.device, like.dtype if like.dtype.is_floating_point else None)
    for name in old:
        setattr(model, name, nn.Identity())
    kind: Any = type(model)
    model.__class__ = kind if issubclass(kind, Attached) else _class(kind)
    model.pool_head = head.train(model.training)
    model.num_classes, model.unpooled = classes, False
    model.head_hidden_size = head.pool.out_features
    for name in ("pretrained_cfg", "default_cfg"):  # what timm leaves out of a checkpoint with other classes
        if isinstance(getattr(model, name, None), dict):
            setattr(model, name, {**getattr(model, name), "classifier": "pool_head.classifier"})
    return model


def _unreached(model: Any) -> list[str]:
    """Returns the names of children that have no part in ``forward_features``, which are the old head.

    Raises:
        PolycovError: if it fails, or gives no local features of ``num_features`` channels.
    """
    modes = {module: module.training for module in model.modules()}
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    wanted = [parameter.requires_grad for parameter in parameters]
    name = type(model).__name__
    try:
        model.eval()
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            features = model.forward_features(_picture(model))
            local = as_local(model, features) if isinstance(features, Tensor) else features
            channels = check_local(name, local)
            reached = torch.autograd.grad(local.sum(), parameters, allow_unused=True)
    except PolycovError:
        raise
    except Exception as error:  # whatever a network says to a picture
        raise PolycovError(f"forward_features of {name} fails on a picture: {type(error).__name__} {error}") from error
    finally:
        for parameter, value in zip(parameters, wanted, strict=True):
            parameter.requires_grad_(value)
        for module, mode in modes.items():
            module.training = mode
    if channels != model.num_features:
        raise PolycovError(f"Expected {model.num_features} channels of {name}, its num_features, got {channels}.")
    used = {id(p) for p, gradient in zip(parameters, reached, strict=True) if gradient is not None}
    children = {child: list(module.parameters()) for child, module in model.named_children()}
    return [child for child, own in children.items() if own and not any(id(p) in used for p in own)]


def _picture(model: Any) -> Tensor:
    """A picture of the size that a model is made for."""
    like = next(model.parameters())
    config = getattr(model, "pretrained_cfg", None) or {}
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or tuple(config.get("input_size", ()))[1:]
    first = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    return torch.rand(1, first, *(size or (224, 224)), device=like.device, dtype=like.dtype)


def _drop_rate(model: Any, old: list[str]) -> float:
    """The dropout before the classifier, wherever a model keeps it."""
    rate = getattr(model, "drop_rate", 0.0)
    parts = [getattr(model, name) for name in {*old, "head_drop", "pool_head", "head"} if hasattr(model, name)]
    inside = [m.p for part in parts if isinstance(part, nn.Module) for m in part.modules() if isinstance(m, nn.Dropout)]
    return max([float(rate) if isinstance(rate, int | float) else 0.0, *inside])
