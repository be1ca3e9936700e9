"""Local features of a dataset as pools take them: in batches from the store, kept in memory if they fit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from polycov.comparing.grid import AVERAGE_LAST, first_order_pool
from polycov.data.feature_store import FeatureStore
from polycov.data.images import SPLITS, ImageData, Split
from polycov.errors import PolycovError
from polycov.models.local_features import join_maps
from polycov.pooling.source import Channels, in_order
from polycov.pooling.tokens import maps_to_tokens
from polycov.system.memory_budget import UNBOUNDED, Memory
from polycov.system.rows import Batches
from polycov.training.extraction import CLASS_TOKEN, LAST, Extracted
from polycov.training.probe import channel_components

BATCH_SIZE = 64


class TokenBatches(Batches):
    """The tokens of a split in batches, (B, N, C).

    Args:
        make: reads them.
        keep: whether they are read once and kept.
        locations: N.
        channels: C, or those of each stage by its name.
    """

    def __init__(self, make: Callable[[], Iterator[Tensor]], *, keep: bool, locations: int, channels: Channels) -> None:
        super().__init__(make, keep=keep)
        self.kept, self.locations, self.channels = keep, locations, channels


Tokens = dict[Split, TokenBatches]


class ReducedFeatures:
    """Local features of the splits of a dataset, reduced to their leading principal components.

    Components are fitted on the training images of each seed; those of the last seed and channel count are kept. The
    tokens of all splits are kept as well if they fit into their share of memory, else read from the store, and reduced,
    whenever they are needed.

    Args:
        extracted: features of all images.
        memory: what may be used of it.
        uses: how many of these objects share the memory.
        channels: what each stage is reduced to, by its name.
    """

    def __init__(
        self,
        extracted: Extracted,
        memory: Memory = UNBOUNDED,
        uses: int = 1,
        channels: Mapping[str, int] | None = None,
    ) -> None:
        self.channels = dict(channels or {})
        self.store, self.vectors, self.extracted = extracted.local.coordinates, extracted.vectors, extracted
        self.width, self.memory, self._room = extracted.local.channels, memory, memory.tokens // uses
        self._key: tuple[str, int, tuple[str | None, ...]] | None = None
        self._tokens: Tokens = {}
        self._bases: dict[Path, tuple[str, Tensor, Tensor]] = {}

    def first_order(self, data: ImageData, method: str) -> Tokens:
        """Returns the tokens for a first-order method, (images, N, C): all channels.

        Where local features are stored in fewer channels or not at all, as those of the last layer, N = 1: the pooled
        feature itself, which pools to itself.
        """
        store = self.vectors.get(LAST if method == AVERAGE_LAST else first_order_pool(method) or "")
        return self.tokens(data, 0) if store is None else self._batches(data, store)

    def with_class_token(self, data: ImageData, tokens: Mapping[Split, TokenBatches]) -> Tokens:
        """Returns tokens with the class token in front, (images, 1 + N, C), reduced as they are."""
        return {split: self._joined(data, split, tokens[split]) for split in SPLITS}

    def _joined(self, data: ImageData, split: Split, tokens: TokenBatches) -> TokenBatches:
        store = self.vectors[CLASS_TOKEN]
        channels = tokens.channels if isinstance(tokens.channels, int) else store.channels  # a class token has no stage
        basis = self._components(data, self.store) if channels < store.channels else None

        def make() -> Iterator[Tensor]:
            for first, rest in zip(store.batches(data[split], BATCH_SIZE), tokens, strict=True):
                yield torch.cat([_reduced(first, basis, channels), rest], 1)

        return TokenBatches(make, keep=False, locations=1 + tokens.locations, channels=channels)

    def tokens(self, data: ImageData, channels: int) -> Tokens:
        """Returns the tokens of each split, (images, N, C); 0 channels for all, as they are."""
        return self._cached((data.fingerprint(), channels, ()), lambda: self._batches(data, self.store, channels))

    def stages(self, data: ImageData, names: Sequence[str | None], *, reduce: bool) -> Tokens:
        """Returns the tokens of stages side by side, (images, N, C).

        Args:
            data: split by a seed.
            names: of the stages; None for the one that every other feature is pooled from, which comes first.
            reduce: whether each is reduced by itself, or has all channels.
        """
        key = (data.fingerprint(), int(reduce), tuple(names))
        return self._cached(key, lambda: self._side_by_side(data, names, reduce))

    def _cached(self, key: tuple[str, int, tuple[str | None, ...]], make: Callable[[], Tokens]) -> Tokens:
        if self._key != key:
            self._tokens = {}  # free the old ones first
            self._tokens = make()
            self._key = key
        return self._tokens

    def _side_by_side(self, data: ImageData, names: Sequence[str | None], reduce: bool) -> Tokens:
        stores = {name: self._stage(name) for name in in_order(names, self.extracted.stage)}
        if not reduce and any(store.basis is not None for store in stores.values()):
            raise PolycovError("First-order pooling needs all channels, and fewer are stored: use --store-channels 0.")
        widths = {name: self.channels[name] if reduce else store.channels for name, store in stores.items()}
        locations = max(store.locations for store in stores.values())

        def read(split: Split) -> Callable[[], Iterator[Tensor]]:
            parts = [(store.coordinates, widths[name] if reduce else 0) for name, store in stores.items()]
            return lambda: map(_joined, *(self._maps(data, split, store, count) for store, count in parts))

        size = 4 * sum(widths.values()) * locations * sum(len(data[split]) for split in SPLITS)
        keep = size <= self._room
        return {split: TokenBatches(read(split), keep=keep, locations=locations, channels=widths) for split in SPLITS}

    def reduction_parameters(self, tokens: TokenBatches) -> int:
        """Returns the parameters of the reduction to tokens: weights and biases for the channels of each stage."""
        channels = tokens.channels
        if isinstance(channels, int):
            return (self.width + 1) * channels
        return sum((self._stage(name).channels + 1) * count for name, count in channels.items())

    def _stage(self, name: str) -> FeatureStore:
        """The local features of a stage."""
        return self.extracted.local if name == self.extracted.stage else self.extracted.beside[name]

    def _maps(self, data: ImageData, split: Split, store: FeatureStore, channels: int) -> Iterator[Tensor]:
        """Local features in batches, reduced, in their layout."""
        basis = self._components(data, store) if channels else None
        for features in store.batches(data[split], BATCH_SIZE):
            tokens = _reduced(features, basis, channels)
            yield tokens.mT.unflatten(2, features.shape[2:]) if features.ndim == 4 else tokens

    def _batches(self, data: ImageData, store: FeatureStore, channels: int = 0) -> Tokens:
        """The features of a store, all of them kept or none."""
        width, basis = channels or store.channels, self._components(data, store) if channels else None
        size = 4 * width * store.locations * sum(len(data[split]) for split in SPLITS)

        def read(split: Split) -> Callable[[], Iterator[Tensor]]:
            return lambda: (_reduced(x, basis, channels) for x in store.batches(data[split], BATCH_SIZE))

        keep, locations = size <= self._room, store.locations
        return {split: TokenBatches(read(split), keep=keep, locations=locations, channels=width) for split in SPLITS}

    def _components(self, data: ImageData, store: FeatureStore) -> tuple[Tensor, Tensor]:
        fingerprint = data.fingerprint()
        if store.folder not in self._bases or self._bases[store.folder][0] != fingerprint:
            mean, components = channel_components(store.batches(data["train"], BATCH_SIZE))
            self._bases[store.folder] = (fingerprint, mean.float(), components.float())
        return self._bases[store.folder][1:]


def _reduced(features: Tensor, basis: tuple[Tensor, Tensor] | None, channels: int) -> Tensor:
    """Maps or tokens as tokens, in their leading principal components."""
    tokens = maps_to_tokens(features)
    if basis is None:
        return tokens.contiguous()
    mean, components = basis
    if channels > len(components):
        raise PolycovError(
            f"Expected at most {len(components)} channels: the backbone has {len(mean)}, and principal components need "
            f"as many local features. Got {channels}."
        )
    return (tokens - mean) @ components[:channels].mT


def _joined(*features: Tensor) -> Tensor:
    """Local features of several stages side by side, as tokens."""
    return maps_to_tokens(join_maps(features)).contiguous()
