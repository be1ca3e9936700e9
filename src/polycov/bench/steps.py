"""Whole training steps, with backbones: apart from the other benchmarks, which need torch alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from polycov.bench.measure import Job, Tick, forward, interleave, quartiles, ratios, timed_pass, training_step
from polycov.bench.tables import MODES, PLAIN, Row, Shape
from polycov.models.backbones import Backbone
from polycov.models.model import Model
from polycov.pooling.methods import method_options

STEP_BACKBONES = {"resnet50": 448, "resnet101": 448, "tf_efficientnet_lite0": 320}
STEP_METHODS = (
    "average",
    PLAIN,
    "isqrt-cov",
    "ipccp-ts",
    "ipccp-rm",
    "ipccp-rm, paper",
    "ipccp-cs",
    "monet-2-ts",
    "monet-2-rm",
)
PAPER_SECONDS = {  # Table 3 of the paper, on a Tesla V100: training and evaluation of one minibatch
    ("resnet50", PLAIN): (0.16, 0.05),
    ("resnet50", "monet-2-rm"): (0.59, 0.52),
    ("resnet50", "ipccp-rm, paper"): (0.24, 0.08),
    ("resnet101", PLAIN): (0.23, 0.08),
    ("resnet101", "monet-2-rm"): (0.71, 0.53),
    ("resnet101", "ipccp-rm, paper"): (0.32, 0.10),
}
WHOLE = (PLAIN, "ipccp-ts")  # timed as whole steps; the others as pools alone, since noise would hide the difference


def whole_steps(shape: Shape, rounds: int, tick: Tick | None = None) -> Iterator[Row]:
    """Times whole networks with random weights, and pools alone on maps of the same size, in training and evaluation.

    The last stage of a ResNet has no stride. The share of a pool is its time divided by that of the whole plain step; a
    whole step with it is the plain step with the one pool's time in place of the other's, since the difference of
    two whole steps would be lost in their noise. ``ratio`` is such a step over the plain one, ``paper_ratio`` that of
    the paper's Table 3.
    """
    for name, side in STEP_BACKBONES.items():
        backbone = Backbone(name, weights="none", last_stride=not name.startswith("resnet"))
        images = torch.rand(shape.batch, 3, side, side, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            size = backbone(images[:1]).shape[2:]
        here = replace(shape, locations=size[0] * size[1])
        for mode in MODES:
            jobs = {f"{m}, step": _whole_step(here, backbone, m, images, mode) for m in WHOLE}
            jobs |= {method: timed_pass(mode, here.module(method), here.features()) for method in STEP_METHODS}
            times = interleave(jobs, rounds, tick)
            for method in STEP_METHODS:
                step = times.get(f"{method}, step")
                shares = ratios(times[method], times[f"{PLAIN}, step"])
                gains = [one - plain for one, plain in zip(times[method], times[PLAIN], strict=True)]
                low, ratio, high = (1 + gain for gain in quartiles(ratios(gains, times[f"{PLAIN}, step"])))
                yield {
                    "backbone": name,
                    "map": f"{size[0]}×{size[1]}",
                    "mode": mode,
                    "method": method,
                    **vars(here),
                    "step_seconds": quartiles(step)[1] if step else None,
                    "pool_seconds": quartiles(times[method])[1],
                    "share": quartiles(shares)[1],
                    "ratio": ratio,
                    "ratio_lower_quartile": low,
                    "ratio_upper_quartile": high,
                    "paper_ratio": paper_ratio(name, method, mode),
                }


def paper_ratio(backbone: str, method: str, mode: str) -> float | None:
    """Returns the ratio of two times in the paper's Table 3, a method over iSQRT-COV; None if it has none."""
    own, plain = PAPER_SECONDS.get((backbone, method)), PAPER_SECONDS.get((backbone, PLAIN))
    index = 1 if mode == "eval" else 0
    return own[index] / plain[index] if own and plain else None


def _whole_step(shape: Shape, backbone: Backbone, method: str, images: Tensor, mode: str) -> Job:
    """A step of backbone, reduction, pool and classifier; in training with gradients of all parameters."""
    options: dict[str, Any] = _dim(shape, method)
    model = Model(backbone, "isqrt-cov" if method == PLAIN else method, 200, shape.channels, **options)
    if method == PLAIN:
        model.pool = _Wrapped(shape.module(PLAIN), model.pool.out_features)  # type: ignore[assignment]
    model.train(mode == "train")
    if mode == "eval":
        return forward(model, images)
    return training_step(model, images, to_input=False)


def _dim(shape: Shape, method: str) -> dict[str, int]:
    return {"dim": shape.dim} if method != PLAIN and "dim" in method_options(method) else {}


class _Wrapped(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], out_features: int) -> None:
        super().__init__()
        self.function, self.out_features = function, out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
