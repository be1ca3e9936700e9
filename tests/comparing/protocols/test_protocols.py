"""Every protocol, on features that separate classes well or badly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from polycov.comparing.protocols.choose import PROTOCOLS, make_protocol
from polycov.comparing.protocols.fewshot import FewShotProtocol
from polycov.comparing.protocols.neighbours import KnnProtocol, RetrievalProtocol
from polycov.comparing.protocols.protocol import FrozenProtocol, Pooled
from polycov.data.images import Split
from polycov.errors import PolycovError

FROZEN = [kind for kind in PROTOCOLS if issubclass(kind, FrozenProtocol)]
SIZES: dict[Split, int] = {"train": 120, "val": 60, "test": 80}


def pooled(spread: float, unseen: bool = False, seed: int = 0) -> Pooled:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 12, generator=generator)
    labels: dict[Split, Tensor] = {split: torch.arange(size) % 10 for split, size in SIZES.items()}
    if unseen:
        labels = {"train": labels["train"] % 4, "val": 4 + labels["val"] % 2, "test": 6 + labels["test"] % 4}
    features = {s: centres[y] + spread * torch.randn(len(y), 12, generator=generator) for s, y in labels.items()}
    return Pooled(features, labels, 10, seed, unseen)


@pytest.mark.parametrize("kind", FROZEN)
def test_better_features_have_higher_scores(kind: type[FrozenProtocol]) -> None:
    protocol = kind(ways=3, episodes=50) if kind is FewShotProtocol else kind()
    good, bad = (protocol.judge(pooled(spread)) for spread in (0.2, 1.5))
    for scores in (good.val, good.test, bad.val, bad.test):
        assert 0 <= float(scores.double().min()) <= float(scores.double().max()) <= 1
    assert float(good.test.double().mean()) > float(bad.test.double().mean()) + 0.1
    assert float(good.val.double().mean()) > float(bad.val.double().mean()) + 0.1
    assert good.stored(lambda features: features) == pytest.approx(float(good.test.double().mean()))
    assert good.stored(lambda features: torch.ones_like(features)) < 0.6  # nothing is left of them
    assert all(0 <= value <= 1 for value in good.metrics.values())


def test_k_is_chosen_on_validation_and_the_test_uses_all_known_images() -> None:
    given = pooled(1.0)
    found = KnnProtocol().judge(given)
    known = torch.cat([given.features["train"][:], given.features["val"][:]])
    labels = torch.cat([given.labels["train"], given.labels["val"]])
    assert found.neighbours is not None
    reference = KNeighborsClassifier(
        found.neighbours, metric="cosine", algorithm="brute", weights=lambda d: np.exp(-d / 0.07)
    ).fit(known.double().numpy(), labels.numpy())
    assert found.predictions is not None
    assert found.predictions.tolist() == reference.predict(given.features["test"][:].double().numpy()).tolist()
    other = Pooled({**given.features, "test": -given.features["test"][:]}, given.labels, 10)
    assert KnnProtocol().judge(other).neighbours == found.neighbours


@pytest.mark.parametrize("kind", FROZEN)
def test_validation_images_are_judged_before_the_pool_has_seen_them(kind: type[FrozenProtocol]) -> None:
    protocol = kind(ways=3, episodes=50) if kind is FewShotProtocol else kind()
    one, other = pooled(0.9), pooled(0.4)
    both = protocol.judge(replace(one, before=other.features))
    torch.testing.assert_close(both.val, protocol.judge(other).val)
    if kind is not KnnProtocol:  # whose k may be another
        assert abs(float((both.test.double() - protocol.judge(one).test.double()).mean())) < 0.1
    assert both.stored(lambda features: features) == pytest.approx(float(both.test.double().mean()))


def test_unseen_classes_are_compared_among_themselves() -> None:
    """Training features play no part: they are of other classes."""
    given = pooled(0.8, unseen=True)
    without = Pooled({**given.features, "train": torch.zeros(120, 12)}, given.labels, 10, 0, True)
    for protocol in (KnnProtocol(), RetrievalProtocol(), FewShotProtocol(ways=4, episodes=20)):
        one, other = protocol.judge(given), protocol.judge(without)
        torch.testing.assert_close(one.test, other.test)
        torch.testing.assert_close(one.val, other.val)
    features, labels = given.features["test"][:].double(), given.labels["test"]
    cosines = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(features).mT
    precisions = []
    for i in range(len(labels)):
        rest = torch.arange(len(labels)) != i
        relevant = (labels[rest] == labels[i]).numpy()
        precisions.append(average_precision_score(relevant, cosines[i][rest].numpy()))
    assert RetrievalProtocol().judge(given).metrics["mAP"] == pytest.approx(sum(precisions) / len(precisions))


def test_all_features_meet_the_same_episodes_and_each_seed_others() -> None:
    protocol = FewShotProtocol(ways=4, shots=2, episodes=30)
    same, other = protocol.judge(pooled(0.9)), protocol.judge(pooled(0.9, seed=1))
    torch.testing.assert_close(protocol.judge(pooled(0.9)).test, same.test)
    assert same.test.tolist() != other.test.tolist()
    assert same.test.tolist() != same.val.tolist()
    assert len(same.test) == len(same.val) == 30


def test_validation_episodes_have_no_more_classes_than_there_are() -> None:
    protocol = FewShotProtocol(ways=3, episodes=5)
    assert len(protocol.judge(pooled(0.5, unseen=True)).val) == 5  # two classes
    with pytest.raises(PolycovError, match="Expected 5 classes"):
        FewShotProtocol(ways=5, episodes=5).judge(pooled(0.5, unseen=True))


def test_a_protocol_says_what_it_does() -> None:
    for kind in PROTOCOLS:
        assert make_protocol(kind.name).words.endswith(".")
    assert "7-way 3-shot" in make_protocol("fewshot", {"ways": 7, "shots": 3}).words
    with pytest.raises(PolycovError, match="Unknown head 'nope'"):
        make_protocol("nope")
