"""Features of images by a frozen network, batch by batch, in this process or in another."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polycov.data.channel_basis import ChannelBasis
from polycov.data.feature_store import encode
from polycov.data.images import Samples
from polycov.data.loading import load_batches
from polycov.data.transforms import Preprocessing
from polycov.engines.work import Work
from polycov.models.backbones import LAST as LAST_STAGE
from polycov.models.backbones import Backbone
from polycov.models.backends.frozen import Backend, ByStage, FrozenBackbone
from polycov.models.networks import import_timm
from polycov.models.plugins import load_plugin
from polycov.pooling.first_order import average
from polycov.pooling.methods import create_pool
from polycov.pooling.pool import Pool
from polycov.pooling.tokens import maps_to_tokens
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device


@dataclass(frozen=True)
class Share:
    """Some of the images.

    Attributes:
        samples: the images.
        indices: their indices among all images.
    """

    samples: Samples
    indices: list[int]


@dataclass(frozen=True)
class FeatureBatch:
    """Features of a few images, as stores keep them.

    Attributes:
        indices: of the images among all.
        features: for each store.
    """

    indices: list[int]
    features: list[Tensor]


@dataclass
class ExtractFeatures(Work[Share, FeatureBatch]):
    """From images to what is stored of them.

    Attributes:
        backbone: gives the local features.
        complete: the same backbone with all layers, for the average of the last one.
        preprocessing: of the images.
        pools: first-order pools of the local features.
        class_token: whether the class token is kept beside the local features.
        beside: further stages whose local features are stored.
        bases: of each store, in the order of `features`.
        batch_size: images per batch.
        workers: processes that read images.
        backend: what runs the backbone; see `FrozenBackbone`.
        count: how many images there are in all.
        device: to compute on; another process chooses its own, unless this one has a GPU and does not use it.
        plugin: what registered the backbone, to be imported first.
        progress: receives which backend was chosen.
    """

    backbone: Backbone
    complete: Backbone | None
    preprocessing: Preprocessing
    pools: tuple[str, ...] = ()
    class_token: bool = False
    beside: tuple[str, ...] = ()
    bases: list[ChannelBasis | None] = field(default_factory=list)
    batch_size: int = 16
    workers: int = 2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: Backend = "auto"
    count: int | None = None
    plugin: str | None = None
    progress: Progress = SILENT
    _ready: tuple[FrozenBackbone, list[Pool]] | None = field(default=None, init=False, repr=False)

    def networks(self) -> nn.ModuleList:
        """Returns the backbone, and the complete one if there is one."""
        return nn.ModuleList([self.backbone, *([self.complete] if self.complete is not None else [])])

    def to(self, device: torch.device) -> None:
        """Moves the networks."""
        self.device = device
        self.networks().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __reduce__(self) -> tuple[Any, ...]:
        only_cpu = self.device.type == "cpu" and torch.cuda.is_available()
        self.networks().cpu()
        content = pickle.dumps({**vars(self), "_ready": None})
        self.to(self.device)
        return _in_another_process, (self.plugin, content, "cpu" if only_cpu else "auto")

    def __call__(self, tasks: Iterable[Share]) -> Iterator[FeatureBatch]:
        """Yields features batch by batch; networks are in evaluation mode."""
        for share in tasks:
            network, _ = self._prepared()
            for outputs, which in network.stream(self.images(share.samples)):
                with torch.inference_mode():
                    values = zip(self._stored(outputs), self.bases, strict=True)
                    encoded = [encode(features, basis) for features, basis in values]
                yield FeatureBatch([share.indices[i] for i in which], encoded)

    def images(self, samples: Samples) -> Iterator[tuple[Tensor, list[int]]]:
        """Yields batches of prepared images on the device, with their indices."""
        count, size = len(samples), self.batch_size
        batches = [range(i, min(i + size, count)) for i in range(0, count, size)]
        for images, _, which in load_batches(samples, self.preprocessing, batches, self.workers, pixels=True):
            yield images.to(self.device), which.tolist()

    def split_tokens(self, local: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns local features, and the class token, (B, 1, C), if it is kept beside them."""
        return (local[:, self.backbone.prefix_tokens :], [local[:, :1]]) if self.class_token else (local, [])

    def features(self, images: Tensor) -> list[Tensor]:
        """Returns what goes into each store, from one pass through the network: local features, pools, the rest."""
        network, _ = self._prepared()
        return self._stored(network(images))

    def _prepared(self) -> tuple[FrozenBackbone, list[Pool]]:
        self._ready = self._ready or (self._freeze(), self._make_pools())
        return self._ready

    def _stored(self, outputs: list[Tensor]) -> list[Tensor]:
        """What goes into each store, of the outputs of the network."""
        (features, *others), (_, pools) = outputs, self._prepared()
        beside, final = others[: len(self.beside)], others[len(self.beside) :]
        local, last = self.split_tokens(features)
        last += [average(maps_to_tokens(x))[:, None] for x in final]
        return [local, *beside, *(pool(local)[:, None] for pool in pools), *last]

    def _freeze(self) -> FrozenBackbone:
        """What gives local features, and those of further stages and the last layer where they are stored too."""
        network: nn.Module = self.backbone
        if self.complete is not None or self.beside:
            final = [LAST_STAGE] if self.complete is not None else []
            names = [*self.backbone.stage_names, *self.beside, *final]
            network = ByStage(self.complete or self.backbone, names)
        return FrozenBackbone(
            network,
            self.backend,
            images=self.count,
            batch_size=self.batch_size,
            preprocessing=self.preprocessing,
            progress=self.progress,
        )

    def _make_pools(self) -> list[Pool]:
        return [create_pool(pool, self.backbone.num_features).to(self.device) for pool in self.pools]


def _in_another_process(plugin: str | None, content: bytes, device: str) -> ExtractFeatures:
    """The work, made of modules that may be defined in timm or in a plugin."""
    import_timm()
    load_plugin(plugin)
    work = ExtractFeatures.__new__(ExtractFeatures)
    vars(work).update(pickle.loads(content))
    work.to(choose_device(device))
    work.networks().eval()
    return work
