"""Bounds for models from elsewhere: a description cannot ask for much more memory than its tensors take."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.models.backbones import stages_to_pool
from polycov.models.networks import check_registered, create_network
from polycov.pooling.spec import Spec, parse_spec
from polycov.system.environment import total_memory

PREFIX = "backbone.network."
SMALL = 2**28  # numbers, 1 GB in float32, that any model may take
STAGES = 16  # of a network, side by side
WIDE = 4096  # channels of a network without a reduction


def check_bounds(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuses a description whose model is larger than its tensors, before memory is allocated for it.

    Raises:
        PolycovError: with the number that is too large, or the tensor that does not fit the network.
    """
    options = description["model"]
    total = sum(tensor.numel() for tensor in tensors.values())
    channels, classes = _count(options["channels"]), _count(options["num_classes"])
    numbers = [channels, classes, *_numbers(parse_spec(options["pool"]))]
    for number in numbers:
        if number * max(channels or WIDE, classes) > max(SMALL, 4 * total):
            raise PolycovError(f"{max(number, channels, classes)} is more than its tensors hold.")
    stages = str(stages_to_pool(options["pool"], options["stage"])).count(",") + 1
    if stages > STAGES:
        raise PolycovError(f"Expected at most {STAGES} stages of a network side by side, got {stages}.")
    _check_network(options, tensors)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolycovError(f"Expected a number of channels and of classes, got {value!r}.")
    return value


def _numbers(spec: Spec) -> list[int]:
    """All numbers in a spec; of a polynomial, how many there are."""
    found: list[int] = []
    for stage in spec.stages:
        for _, value in stage.arguments:
            if isinstance(value, tuple):
                found.append(len(value))
            elif isinstance(value, int):
                found.append(abs(value))
    return found


def _check_network(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Makes the network without memory, and compares it with its tensors; an earlier stage has some of them."""
    name = options["backbone"]
    if not isinstance(name, str):
        return  # which is refused elsewhere
    check_registered(name)
    try:
        with torch.device("meta"):
            network = create_network(name, "none", options["last_stride"], options["size"])
    except PolycovError:  # making it for real says why, or works: some networks cannot be made without memory
        return
    shapes = {PREFIX + key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    for key, tensor in tensors.items():
        if key.startswith(PREFIX) and tuple(tensor.shape) != shapes.get(key):
            raise PolycovError(f"The tensor {key!r} of shape {tuple(tensor.shape)} does not fit {name!r}.")
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    if size > total_memory() // 2:
        raise PolycovError(
            f"The network {name!r} takes {size / 2**30:.0f} GB, more than half of this machine's memory."
        )
