"""Optimisers with two learning rates, and how the rates change over time."""

import importlib
import math

import torch

from polycov.errors import PolycovError, known
from polycov.models.backbones import import_timm
from polycov.models.model import Model
from polycov.training.config import TrainOptions


def learning_rate_factor(options: TrainOptions, epoch: float) -> float:
    """Returns the factor of the learning rates at a time, in epochs.

    Example:
        >>> learning_rate_factor(TrainOptions(epochs=10), 5)
        0.5
        >>> learning_rate_factor(TrainOptions(schedule="step", milestones=(30, 45)), 50)
        0.01
    """
    if epoch < options.warmup:
        return epoch / options.warmup
    if options.schedule == "step":
        return round(0.1 ** sum(epoch >= milestone for milestone in options.milestones), 12)
    if options.schedule == "cosine":
        share = (epoch - options.warmup) / max(options.epochs - options.warmup, 1e-9)
        return round((1 + math.cos(math.pi * min(share, 1.0))) / 2, 12)
    return 1.0


def make_optimizer(model: Model, options: TrainOptions) -> torch.optim.Optimizer:
    """Returns an optimiser with two learning rates: one for the backbone, one for the new layers on top.

    Raises:
        PolycovError: if there is no such optimiser, or it is not available here.
    """
    import_timm()
    optim = importlib.import_module("timm.optim")
    if options.optimizer not in optim.list_optimizers():
        raise PolycovError(
            f"Unknown optimizer {options.optimizer!r}. {known(options.optimizer, optim.list_optimizers())}"
        )
    try:
        optimizer = optim.create_optimizer_v2(
            _parameter_groups(model, options),
            opt=options.optimizer,
            lr=options.lr,
            weight_decay=options.weight_decay,
            momentum=options.momentum,
        )
    except Exception as error:  # some need another package, or a GPU
        raise PolycovError(f"The optimizer {options.optimizer!r} is not available here: {error!r}.") from error
    if getattr(optimizer, "is_second_order", False):
        raise PolycovError(f"The optimizer {options.optimizer!r} needs second derivatives, which are not computed.")
    return optimizer


def _parameter_groups(model: Model, options: TrainOptions) -> list[dict[str, object]]:
    new_layers = [model.classifier, model.pool, *([] if model.reduction_has_weights else [model.reduction])]
    new = {id(p) for module in new_layers for p in module.parameters()}
    groups: list[dict[str, object]] = []
    for is_new, lr in ((False, options.backbone_lr), (True, options.lr)):
        parameters = [p for p in model.parameters() if p.requires_grad and (id(p) in new) == is_new]
        if parameters:
            groups.append({"params": parameters, "lr": lr, "full_lr": lr})
    return groups
