import numpy as np
import pytest
import torch
from torch import Tensor

from polycov.errors import PolycovError
from polycov.inference.episodes import QUERIES, draw_episodes, prototype_accuracy


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    centres = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 8
    noise = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return centres[labels] + 0.9 * noise, labels


@pytest.mark.parametrize("apart", [False, True])
def test_an_episode_has_its_ways_and_shots_and_no_image_twice(apart: bool) -> None:
    labels, other = images(160, 1)[1], images(80, 2)[1]
    support_labels = other if apart else labels
    seen: set[int] = set()
    for episode in draw_episodes(labels, other if apart else None, ways=4, shots=3, count=30, seed=5):
        classes = support_labels[episode.support]
        assert episode.support.shape == (4, 3)
        assert (classes == classes[:, :1]).all()
        assert len(classes[:, 0].unique()) == 4
        torch.testing.assert_close(labels[episode.queries], classes[episode.targets, 0])
        assert len(episode.queries) == 4 * min(QUERIES, 20 - 3 * (not apart))
        assert len(episode.queries.unique()) == len(episode.queries)
        if not apart:
            assert not set(episode.support.flatten().tolist()) & set(episode.queries.tolist())
        seen |= set(episode.support.flatten().tolist())
    assert len(seen) > 0.8 * len(support_labels)


def test_episodes_depend_on_the_seed_alone() -> None:
    labels = images(80, 1)[1]
    one, same, other = (draw_episodes(labels, count=3, seed=seed)[2].queries for seed in (1, 1, 2))
    torch.testing.assert_close(one, same)
    assert one.tolist() != other.tolist()


def test_accuracies_are_those_of_a_loop() -> None:
    (queries, labels), (support, support_labels) = images(96, 1), images(48, 2)
    episodes = draw_episodes(labels, support_labels, ways=5, shots=2, count=20)
    expected = []
    for episode in episodes:
        correct = 0
        for index in episode.queries.tolist():
            query, best = queries[index].double().numpy(), (-2.0, -1)
            for members in episode.support.tolist():
                rows = [support[i].double().numpy() for i in members]
                prototype = np.mean([row / np.linalg.norm(row) for row in rows], axis=0)
                cosine = query @ prototype / np.linalg.norm(query) / np.linalg.norm(prototype)
                best = max(best, (cosine, int(support_labels[members[0]])))
            correct += best[1] == int(labels[index])
        expected.append(correct / len(episode.queries))
    np.testing.assert_allclose(prototype_accuracy(episodes, queries, support).numpy(), expected)
    assert 0.4 < np.mean(expected) < 0.99


def test_too_few_classes_or_images_say_what_to_do() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    assert len(draw_episodes(labels, ways=2, count=4)) == 4
    with pytest.raises(PolycovError, match=r"Expected 3 classes with at least 2 images .* got 2. Choose fewer --ways"):
        draw_episodes(labels, ways=3)
    with pytest.raises(PolycovError, match="Expected shots to be at least 1, got 0"):
        draw_episodes(labels, shots=0)
