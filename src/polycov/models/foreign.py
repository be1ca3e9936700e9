"""Weights of other models, renamed for a model of ours: of a published fast-MPN-COV ResNet, or of another run."""

import torch
from torch import nn

from polycov.models.tensors import State
from polycov.models.weights import load_exactly
from polycov.pooling.pool import Pool

_FAST_MPN_COV = {"layer_reduce.": "reduction.0.", "layer_reduce_bn.": "reduction.1.", "fc.": "classifier."}


def holds_reduction(state: State) -> bool:
    """Returns whether weights are of a fast-MPN-COV network or of a run: a backbone with its reduction."""
    return "layer_reduce.weight" in state or any(name.startswith("backbone.network.") for name in state)


def load_foreign(model: nn.Module, pool: Pool, state: State, source: str) -> None:
    """Loads backbone and reduction from weights that `holds_reduction`; of fast-MPN-COV the classifier too if it fits.

    Args:
        model: model with modules ``backbone.network``, ``reduction``, ``pool`` and ``classifier``.
        pool: pool of the model.
        state: the weights.
        source: where they come from, for the error message.

    Raises:
        PolycovError: if they do not fit.
    """
    own = model.state_dict()
    renamed = _from_fast_mpn_cov(state, own, pool) if "layer_reduce.weight" in state else _from_run(state, own)
    load_exactly(model, renamed, source)


def _from_run(state: State, own: State) -> State:
    """The backbone and reduction of a run, with the pool and classifier of this model."""
    theirs = {name: tensor for name, tensor in state.items() if name.startswith(("backbone.", "reduction."))}
    return theirs | {name: tensor for name, tensor in own.items() if name.startswith(("pool.", "classifier."))}


def _from_fast_mpn_cov(state: State, own: State, pool: Pool) -> State:
    """The state of a published fast-MPN-COV ResNet under our names.

    Its classifier is used if the model pools by a triangle and has as many classes; otherwise the model keeps its own.
    It works on a triangle without √2, so weights off the diagonal are divided by √2, which gives the same logits.
    """
    renamed: State = {}
    for name, tensor in state.items():
        prefix = next((p for p in _FAST_MPN_COV if name.startswith(p)), None)
        renamed[_FAST_MPN_COV[prefix] + name[len(prefix) :] if prefix else f"backbone.network.{name}"] = tensor
    weight = renamed.get("classifier.weight")
    if weight is not None and pool.spec.endswith("| triu") and weight.shape == own["classifier.weight"].shape:
        rows, columns = torch.triu_indices(pool.channels, pool.channels)
        renamed["classifier.weight"] = weight / ((rows != columns).to(weight.dtype) * (2.0**0.5 - 1) + 1)
    else:
        renamed |= {name: tensor for name, tensor in own.items() if name.startswith("classifier.")}
    return renamed | {name: tensor for name, tensor in own.items() if name.startswith("pool.")}
