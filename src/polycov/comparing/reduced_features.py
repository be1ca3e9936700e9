"""Local features of a dataset as pools take them: in batches from the store, kept in memory if they fit."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from polycov.comparing.grid import AVERAGE_LAST, first_order_pool
from polycov.data.feature_store import FeatureStore
from polycov.data.images import SPLITS, ImageData, Split
from polycov.errors import PolycovError
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
        channels: C.
    """

    def __init__(self, make: Callable[[], Iterator[Tensor]], *, keep: bool, locations: int, channels: int) -> None:
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
    """

    def __init__(self, extracted: Extracted, memory: Memory = UNBOUNDED, uses: int = 1) -> None:
        self.store, self.vectors = extracted.local.coordinates, extracted.vectors
        self.width, self.memory, self._room = extracted.local.channels, memory, memory.tokens // uses
        self._key: tuple[str, int] | None = None
        self._tokens: Tokens = {}
        self._basis: tuple[str, Tensor, Tensor] | None = None

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
        store, channels = self.vectors[CLASS_TOKEN], tokens.channels
        basis = self._components(data) if channels < store.channels else None

        def make() -> Iterator[Tensor]:
            for first, rest in zip(store.batches(data[split], BATCH_SIZE), tokens, strict=True):
                yield torch.cat([_reduced(first, basis, channels), rest], 1)

        return TokenBatches(make, keep=False, locations=1 + tokens.locations, channels=channels)

    def tokens(self, data: ImageData, channels: int) -> Tokens:
        """Returns the tokens of each split, (images, N, C); 0 channels for all, as they are."""
        key = (data.fingerprint(), channels)
        if self._key != key:
            self._tokens = {}  # free the old ones first
            self._tokens = self._batches(data, self.store, channels)
            self._key = key
        return self._tokens

    def _batches(self, data: ImageData, store: FeatureStore, channels: int = 0) -> Tokens:
        """The features of a store, all of them kept or none."""
        width, basis = channels or store.channels, self._components(data) if channels else None
        size = 4 * width * store.locations * sum(len(data[split]) for split in SPLITS)

        def read(split: Split) -> Callable[[], Iterator[Tensor]]:
            return lambda: (_reduced(x, basis, channels) for x in store.batches(data[split], BATCH_SIZE))

        keep, locations = size <= self._room, store.locations
        return {split: TokenBatches(read(split), keep=keep, locations=locations, channels=width) for split in SPLITS}

    def _components(self, data: ImageData) -> tuple[Tensor, Tensor]:
        fingerprint = data.fingerprint()
        if self._basis is None or self._basis[0] != fingerprint:
            mean, components = channel_components(self.store.batches(data["train"], BATCH_SIZE))
            self._basis = (fingerprint, mean.float(), components.float())
        return self._basis[1], self._basis[2]


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
