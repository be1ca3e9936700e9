"""The protocol of a comparison, from its options or from its folder."""

from collections.abc import Mapping
from typing import Any, Literal

from polycov.comparing.protocols.classifiers import FinetuneProtocol, ProbeProtocol, TrainProtocol
from polycov.comparing.protocols.fewshot import FewShotProtocol
from polycov.comparing.protocols.neighbours import KnnProtocol, RetrievalProtocol
from polycov.comparing.protocols.protocol import Protocol
from polycov.errors import PolycovError, known

Head = Literal["probe", "train", "finetune", "knn", "fewshot", "retrieval"]
PROTOCOLS: tuple[type[Protocol], ...] = (
    ProbeProtocol,
    TrainProtocol,
    FinetuneProtocol,
    KnnProtocol,
    FewShotProtocol,
    RetrievalProtocol,
)
TRAINED = ("train", "finetune")  # heads that need no stored features


def make_protocol(head: str, options: Mapping[str, Any] | None = None) -> Protocol:
    """Returns the protocol of a head.

    Args:
        head: its name.
        options: of the protocol, such as ``ways``.

    Raises:
        PolycovError: if there is no such head.

    Example:
        >>> make_protocol("knn").words
        'k nearest neighbours by cosine on the frozen backbone, k chosen on validation.'
    """
    for kind in PROTOCOLS:
        if kind.name == head:
            return kind(**(options or {}))
    raise PolycovError(f"Unknown head {head!r}. {known(head, [kind.name for kind in PROTOCOLS])}")
