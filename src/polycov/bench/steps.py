"""Whole training steps, with backbones: apart from the other benchmarks, which need torch alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from polycov.bench.measure import Job, Tick, interleave, quartiles, ratios, training_step
from polycov.bench.tables import PLAIN, Row, Shape
from polycov.models.backbones import Backbone
from polycov.models.model import Model
from polycov.pooling.methods import method_options

STEP_BACKBONES = {"resnet50": 448, "tf_efficientnet_lite0": 320}
STEP_METHODS = ("average", PLAIN, "isqrt-cov", "ipccp-ts", "ipccp-rm", "ipccp-cs", "monet-2-ts")
WHOLE = (PLAIN, "ipccp-ts")  # timed as whole steps; the others as pools alone, since noise would hide the difference


def whole_steps(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Times training steps of whole networks with random weights, and of pools alone on maps of the same size.

    The last stage of resnet50 has no stride. The share of a pool is its time divided by that of the whole plain step.
    """
    for name, side in STEP_BACKBONES.items():
        backbone = Backbone(name, weights="none", last_stride=name != "resnet50")
        images = torch.rand(shape.batch, 3, side, side, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            size = backbone(images[:1]).shape[2:]
        here = replace(shape, locations=size[0] * size[1])
        jobs = {f"{m}, step": _whole_step(here, backbone, m, images) for m in WHOLE}
        jobs |= {method: training_step(here.module(method), here.features()) for method in STEP_METHODS}
        times = interleave(jobs, rounds, tick)
        for method in STEP_METHODS:
            step = times.get(f"{method}, step")
            yield {
                "backbone": name,
                "map": f"{size[0]}×{size[1]}",
                "method": method,
                **vars(here),
                "step_seconds": quartiles(step)[1] if step else None,
                "pool_seconds": quartiles(times[method])[1],
                "share": quartiles(ratios(times[method], times[f"{PLAIN}, step"]))[1],
            }


def _whole_step(shape: Shape, backbone: Backbone, method: str, images: Tensor) -> Job:
    """A training step of backbone, reduction, pool and classifier, with gradients of all parameters."""
    options: dict[str, Any] = _dim(shape, method)
    model = Model(backbone, "isqrt-cov" if method == PLAIN else method, 200, shape.channels, **options)
    if method == PLAIN:
        model.pool = _Wrapped(shape.module(PLAIN), model.pool.out_features)  # type: ignore[assignment]
    return training_step(model, images, to_input=False)


def _dim(shape: Shape, method: str) -> dict[str, int]:
    return {"dim": shape.dim} if method != PLAIN and "dim" in method_options(method) else {}


class _Wrapped(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], out_features: int) -> None:
        super().__init__()
        self.function, self.out_features = function, out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
