"""k-NN and retrieval: nothing is trained, features are only compared."""

from dataclasses import dataclass

from torch import Tensor

from polycov.comparing.protocols.protocol import Encode, FrozenProtocol, Judgement, Pooled
from polycov.data.images import Split
from polycov.inference.knn import choose_neighbours, predict_knn
from polycov.inference.retrieval import Retrieval, retrieve


@dataclass(frozen=True)
class KnnProtocol(FrozenProtocol):
    """A vote of the k nearest neighbours; k is chosen on validation."""

    name = "knn"
    words = "k nearest neighbours by cosine on the frozen backbone, k chosen on validation."

    def judge(self, pooled: Pooled) -> Judgement:
        """Classifies validation and test images."""
        before = pooled.validation()
        k, val = choose_neighbours(
            before.features["val"], before.labels["val"], *before.gallery("val"), memory=pooled.memory
        )
        truth = pooled.labels["test"]

        def stored(encode: Encode) -> float:
            return float((_vote(pooled.encoded(encode), k) == truth).double().mean())

        predictions = _vote(pooled, k)
        return Judgement(val, predictions == truth, stored, predictions=predictions, neighbours=k)


def _vote(pooled: Pooled, k: int) -> Tensor:
    """The classes of the test images."""
    gallery, labels = pooled.gallery("test")
    known = pooled.labels["test"] if labels is None else labels
    return predict_knn(pooled.features["test"], known, gallery, [k], pooled.memory)[k]


@dataclass(frozen=True)
class RetrievalProtocol(FrozenProtocol):
    """Whether the most similar image is of the same class, and how well all of them are ranked."""

    name = "retrieval"
    score = "recall@1"
    words = "images are ranked by cosine on the frozen backbone; nothing is trained."

    def judge(self, pooled: Pooled) -> Judgement:
        """Ranks the gallery for each validation and test image; k-NN with k chosen on validation comes beside it."""
        found, knn = _retrieve(pooled, "test"), KnnProtocol().judge(pooled)

        def stored(encode: Encode) -> float:
            return _retrieve(pooled.encoded(encode), "test").recall(1)

        metrics = {"recall@10": found.recall(10), "mAP": found.mean_average_precision}
        metrics["k-NN"] = float(knn.test.double().mean())
        return Judgement(
            _retrieve(pooled.validation(), "val").found[1], found.found[1], stored, metrics, neighbours=knn.neighbours
        )


def _retrieve(pooled: Pooled, split: Split) -> Retrieval:
    gallery = pooled.gallery(split)
    return retrieve(pooled.features[split], pooled.labels[split], *gallery, memory=pooled.memory)
