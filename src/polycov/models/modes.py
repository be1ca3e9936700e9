"""Training and evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Puts modules in evaluation mode inside a ``with`` block; afterwards each submodule has its own mode again.

    So a BatchNorm that was frozen with ``eval()`` in a model that trains stays frozen.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(3).eval())
        >>> with evaluation_mode(model):
        ...     [module.training for module in model]
        [False, False]
        >>> [module.training for module in model]
        [True, False]
    """
    modes = [(inner, inner.training) for module in modules for inner in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for inner, training in modes:
            inner.training = training
