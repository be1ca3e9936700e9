import multiprocessing
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fake_images import make_image
from polycov.data.images import Files, Samples
from polycov.data.loading import KEPT, epoch_order, load_batches, load_items, seed_from
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError


def test_an_epoch_has_equal_batches_without_duplicates() -> None:
    order = epoch_order(25, 8, seed=1, epoch=0)
    assert [len(batch) for batch in order] == [8, 8, 8]
    assert len({i for batch in order for i in batch}) == 24
    assert order == epoch_order(25, 8, seed=1, epoch=0)
    assert order != epoch_order(25, 8, seed=1, epoch=1)
    assert order != epoch_order(25, 8, seed=2, epoch=0)


def test_a_batch_is_at_most_the_whole_data() -> None:
    assert [sorted(batch) for batch in epoch_order(3, 8, seed=0, epoch=0)] == [[0, 1, 2]]


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_from(0, "augment", 3, 7) == 5941963433555707119
    assert seed_from(1, 2) != seed_from(12)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    for i in range(4):
        make_image(0, i).save(tmp_path / f"{i}.png")
    (tmp_path / "4.png").write_text("not an image")
    return Samples(Files(tmp_path), [f"{i}.png" for i in range(5)], [5, 6, 7, 8, 9])


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_come_in_the_given_order(samples: Samples, workers: int) -> None:
    preprocessing = Preprocessing(16, 16)
    batches = list(load_batches(samples, preprocessing, [[2, 0], [1, 3]], workers))
    assert [labels.tolist() for _, labels, _ in batches] == [[7, 5], [6, 8]]
    assert [indices.tolist() for _, _, indices in batches] == [[2, 0], [1, 3]]
    assert torch.equal(batches[0][0][1], preprocessing(make_image(0, 0)))


def test_pixels_are_those_of_the_prepared_images(samples: Samples) -> None:
    preprocessing = Preprocessing(12, 16, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    ((pixels, _, _),) = load_batches(samples, preprocessing, [[2, 0]], pixels=True)
    ((images, _, _),) = load_batches(samples, preprocessing, [[2, 0]])
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.uint8, (2, 12, 12, 3))
    assert torch.equal(preprocessing.normalise(pixels), images)
    skipped: list[int] = []
    ((pixels, _, _),) = load_batches(samples, preprocessing, [[4, 0]], 0, lambda i, _: skipped.append(i), pixels=True)
    assert (len(pixels), skipped) == (1, [4])


def test_pixels_from_workers_stay_until_the_third_batch_after_theirs(samples: Samples) -> None:
    preprocessing, numbers = Preprocessing(16, 16), [[i % 4] if i % 3 else [i % 4, 4, 2] for i in range(30)]
    recent: deque[tuple[torch.Tensor, list[int]]] = deque(maxlen=KEPT)
    reasons: list[int] = []
    loading = load_batches(samples, preprocessing, numbers, 2, lambda i, _: reasons.append(i), pixels=True)
    for images, labels, indices in loading:
        recent.append((images, indices.tolist()))
        assert labels.tolist() == [5 + i for i in indices.tolist()]
        for pixels, which in recent:
            assert torch.equal(pixels, torch.stack([preprocessing.pixels(samples.image(i)) for i in which]))
    assert reasons == [4] * 10
    assert [which for _, which in recent] == [[3, 2], [0], [1]]


def test_pixels_are_sent_where_processes_can_share_little_memory(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    preprocessing, numbers, reasons = Preprocessing(16, 16), [[2, 0], [4, 1], [3]], list[int]()

    def read() -> list[tuple[torch.Tensor, list[int]]]:
        loading = load_batches(samples, preprocessing, numbers, 2, lambda i, _: reasons.append(i), pixels=True)
        return [(images.clone(), indices.tolist()) for images, _, indices in loading]

    shared = read()
    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    for (images, indices), (expected, same) in zip(read(), shared, strict=True):
        assert torch.equal(images, expected)
        assert indices == same
    assert reasons == [4, 4]


@pytest.mark.slow
def test_a_killed_process_that_reads_is_named(samples: Samples) -> None:
    loading = load_batches(samples, Preprocessing(16, 16), [[0]] * 40, 1, pixels=True)
    next(loading)
    (reader,) = multiprocessing.active_children()
    reader.kill()
    reader.join()
    with pytest.raises(PolycovError, match="A process that reads images was killed"):
        for _ in loading:
            pass


def test_pairs_of_index_and_seed_are_augmented(samples: Samples) -> None:
    preprocessing = Preprocessing(16, 32, crop="random")
    ((images, _, indices),) = load_batches(samples, preprocessing, [[(2, 11), (2, 12)]])
    assert indices.tolist() == [2, 2]
    assert torch.equal(images[0], preprocessing.augmented(make_image(0, 2), 11))
    assert torch.equal(images[1], preprocessing.augmented(make_image(0, 2), 12))


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_raise_or_are_skipped(samples: Samples, workers: int) -> None:
    preprocessing = Preprocessing(16, 16)
    with pytest.raises(PolycovError, match=r"^Cannot read the image '4.png': it is not an image.$"):
        list(load_batches(samples, preprocessing, [[4, 0]], workers))
    skipped: dict[int, str] = {}
    ((images, labels, indices),) = load_batches(samples, preprocessing, [[4, 0]], workers, skipped.__setitem__)
    assert skipped == {4: "Cannot read the image '4.png': it is not an image."}
    assert (labels.tolist(), indices.tolist(), len(images)) == ([5], [0], 1)


def test_drafts_are_close_to_whole_images(tmp_path: Path) -> None:
    make_image(0, 0, 512).save(tmp_path / "0.jpg", quality=95)
    samples = Samples(Files(tmp_path), ["0.jpg"], [0])
    ((whole, _, _),) = load_batches(samples, Preprocessing(32, 32), [[0]], pixels=True)
    ((draft, _, _),) = load_batches(samples, Preprocessing(32, 32, draft=True), [[0]], pixels=True)
    difference = (whole.float() - draft.float()).abs()
    assert 0 < float(difference.mean()) < 4


@pytest.mark.parametrize("workers", [0, 2])
def test_items_are_read_as_they_come_and_unreadable_ones_are_reported_with_their_batch(
    samples: Samples, workers: int
) -> None:
    taken: list[list[str]] = []
    skipped: list[tuple[int, int, str]] = []

    def batches() -> Iterator[list[str]]:
        for numbers in [[2, 0], [1, 4, 3], [4], [3]] + [[0]] * 20:
            taken.append([f"{i}.png" for i in numbers])
            yield taken[-1]

    preprocessing, done = Preprocessing(16, 16), 0
    loading = load_items(
        samples.source, preprocessing, batches(), 3, workers, lambda i, why: skipped.append((done, i, why))
    )
    for images, positions in loading:
        expected = [preprocessing.pixels(samples.image(int(taken[done][i][0]))) for i in positions.tolist()]
        assert torch.equal(images, torch.stack(expected) if expected else images[:0])
        assert len(taken) <= done + 1 + 2 * workers  # the rest has not been listed yet
        done += 1
    reason = "Cannot read the image '4.png': it is not an image."
    assert (done, skipped) == (24, [(1, 1, reason), (2, 0, reason)])
