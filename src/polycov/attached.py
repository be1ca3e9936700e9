"""Second-order pooling in a model of timm that one already has."""

import functools
from typing import Any

from torch import Tensor, nn

from polycov.backbones import as_local
from polycov.errors import PolycovError
from polycov.model import PoolingHead, Reduction, make_classifier


class Attached:
    """What stands before the class of a timm model whose pooling was replaced: the methods that concern its head.

    ``forward_features`` and ``num_features``, the channels it gives, are the model's own; ``head_hidden_size`` is the
    size of the pooled feature.
    """

    pool_head: PoolingHead
    num_classes: int
    head_hidden_size: int
    training: bool
    unpooled = False

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns the logits of what ``forward_features`` gave; with ``pre_logits`` the pooled feature."""
        head = self.pool_head
        if self.unpooled:
            return x
        x = head.pool(head.reduce(as_local(self, x)))
        x = nn.functional.dropout(x, getattr(self, "drop_rate", 0.0), self.training)
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
        channels: the local features are reduced to; 0 for no reduction; None as in `polycov.model.PoolingHead`.
        reduction: "relu" (1×1 convolution, BatchNorm, ReLU) or "linear" (1×1 convolution).
        seed: of the sketches.
        options: further numbers of the method, such as ``iterations``.

    Returns:
        The model.

    Raises:
        PolycovError: if it is no such model, or on an unknown method or a number out of range.
    """
    needed = ("forward_features", "forward_head", "reset_classifier", "num_features", "num_classes")
    missing = [name for name in needed if not hasattr(model, name)]
    if missing:
        raise PolycovError(f"Expected a classifier of timm, got {type(model).__name__}, which has no {missing[0]}.")
    classes = model.num_classes if num_classes is None else num_classes
    head = PoolingHead(model.num_features, pool, classes, channels, reduction=reduction, seed=seed, dim=dim, **options)
    like = next(model.parameters())
    head.to(like.device, like.dtype if like.dtype.is_floating_point else None)
    _take_head_away(model)
    kind: Any = type(model)
    model.__class__ = kind if issubclass(kind, Attached) else _class(kind)
    model.pool_head = head.train(model.training)
    model.num_classes, model.unpooled = classes, False
    model.head_hidden_size = head.pool.out_features
    for name in ("pretrained_cfg", "default_cfg"):  # what timm leaves out of a checkpoint with other classes
        if isinstance(getattr(model, name, None), dict):
            setattr(model, name, {**getattr(model, name), "classifier": "pool_head.classifier"})
    return model


def _take_head_away(model: Any) -> None:
    """Takes away what is left of the old head: no parameter is to stay that no gradient reaches."""
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or "fc"
    roots = [named] if isinstance(named, str) else list(named)
    for name in {root.partition(".")[0] for root in roots} | {"global_pool", "fc_norm", "attn_pool"}:
        if isinstance(getattr(model, name, None), nn.Module) and name != "pool_head":
            setattr(model, name, nn.Identity())
