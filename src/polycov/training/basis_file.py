"""The channel basis of a network, fitted once and kept in the cache."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from polycov.data.channel_basis import ChannelBasis
from polycov.errors import PolycovError
from polycov.models.tensors import load_tensors, save_tensors
from polycov.system.formats import require_format
from polycov.system.locks import wait_for_lock

FORMAT = 1


class BasisFile:
    """One `ChannelBasis` in ``bases/DIGEST.safetensors`` of the cache.

    Features stored in a basis carry its digest in their identity: if the file is lost and fitted anew, they are too.

    Args:
        cache: folder of the cache.
        identity: what the basis was fitted to, as JSON values; another identity is another file.
    """

    def __init__(self, cache: Path, identity: Mapping[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.path = cache / "bases" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def lock(self) -> AbstractContextManager[None]:
        """Waits for the lock, which the process that fits the basis holds."""
        return wait_for_lock(self.path.with_suffix(".lock"))

    def load(self) -> ChannelBasis | None:
        """Returns the basis; None if there is no file, or a damaged one.

        Raises:
            PolycovError: if a newer version of polycov wrote it.
        """
        try:
            tensors, notes = load_tensors(self.path)
        except PolycovError:
            return None
        require_format(
            notes.get("format", FORMAT), FORMAT, f"The basis {str(self.path)!r}", "Remove it to fit it again."
        )
        try:
            basis = ChannelBasis(tensors["mean"], tensors["components"], float(notes["share"]))
            return basis if basis.digest() == notes["digest"] else None
        except (KeyError, TypeError, ValueError, RuntimeError):
            return None

    def save(self, basis: ChannelBasis) -> None:
        """Writes a basis."""
        notes = {"format": FORMAT, "digest": basis.digest(), "share": basis.share}
        save_tensors(self.path, {"mean": basis.mean, "components": basis.components}, notes)
