"""Few-shot episodes with prototypes."""

from dataclasses import dataclass

from torch import Tensor

from polycov.comparing.protocols.protocol import Encode, FrozenProtocol, Judgement, Pooled
from polycov.data.images import Split
from polycov.inference.episodes import Episode, draw_episodes, prototype_accuracy


@dataclass(frozen=True)
class FewShotProtocol(FrozenProtocol):
    """The accuracy of the nearest prototype in episodes of a few classes and labelled images.

    Attributes:
        ways: classes of an episode.
        shots: labelled images of each of them.
        episodes: per seed, on validation and on test.
    """

    name = "fewshot"
    unit = "episodes"
    ways: int = 5
    shots: int = 1
    episodes: int = 600

    @property
    def words(self) -> str:
        """What is done, in words."""
        return (
            f"{self.ways}-way {self.shots}-shot episodes on the frozen backbone, {self.episodes} for each seed: the "
            "nearest prototype by cosine; nothing is trained."
        )

    def judge(self, pooled: Pooled) -> Judgement:
        """Classifies the queries of episodes that are the same for all features."""
        drawn = self._draw(pooled, "test")

        def stored(encode: Encode) -> float:
            return float(_accuracies(pooled.encoded(encode), "test", drawn).mean())

        val = _accuracies(pooled.validation(), "val", self._draw(pooled, "val"))
        return Judgement(val, _accuracies(pooled, "test", drawn), stored)

    def _draw(self, pooled: Pooled, split: Split) -> list[Episode]:
        """The episodes of a split. On validation they have no more classes than there are."""
        labels, known = pooled.labels[split], pooled.gallery(split)[1]
        ways = self.ways if split == "test" else min(self.ways, len(labels.unique()))
        seed = 2 * pooled.seed + (split == "test")
        return draw_episodes(labels, known, ways=ways, shots=self.shots, count=self.episodes, seed=seed)


def _accuracies(pooled: Pooled, split: Split, episodes: list[Episode]) -> Tensor:
    return prototype_accuracy(episodes, pooled.features[split], pooled.gallery(split)[0])
