import numpy as np
import pytest
import torch
from PIL import Image

from pictures import picture
from polycov.data.images import Files, Samples
from polycov.data.loading import epoch_order, load, number_from
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError


def test_evaluation_resizes_the_shorter_side_and_takes_the_centre() -> None:
    image = picture(0, 0, 40).resize((60, 40))
    x = Preprocessing(20, 30, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))(image)
    middle = np.asarray(image.resize((45, 30), Image.Resampling.BICUBIC).crop((12, 5, 32, 25)), dtype=np.float64) / 255
    expected = (middle - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(x.permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_squeezing_keeps_all_of_the_picture() -> None:
    image = Image.new("RGB", (80, 20))
    image.paste((255, 0, 0), (0, 0, 40, 20))
    x = Preprocessing(10, 10, squash=True, interpolation="nearest")(image)
    assert x[0, :, :5].eq(1).all()
    assert x[0, :, 5:].eq(-1).all()


def test_a_picture_of_one_line_is_not_made_a_giant() -> None:
    x = Preprocessing(320, 320)(Image.new("RGB", (60000, 1), "white"))
    assert x.shape == (3, 320, 320)
    assert x.eq(1).all()


@pytest.mark.parametrize("crop", ["center", "random", "scale"])
def test_augmentation_depends_on_the_seed_alone(crop: str) -> None:
    image = picture(1, 1).resize((60, 40))
    prepare = Preprocessing(16, 32, crop=crop)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    pictures = [prepare.augmented(image, seed) for seed in range(20)]
    assert torch.equal(torch.get_rng_state(), state)  # the global random state is left alone
    assert all(x.shape == (3, 16, 16) for x in pictures)
    assert torch.equal(pictures[3], prepare.augmented(image, 3))
    different = {x.numpy().tobytes() for x in pictures}
    assert len(different) == (2 if crop == "center" else 20)  # the centre and its mirror image


def test_without_augmentation_training_sees_what_evaluation_does() -> None:
    prepare = Preprocessing(16, 20, flip=False)
    torch.testing.assert_close(prepare.augmented(picture(0, 1), 5), prepare(picture(0, 1)), rtol=0, atol=0)


def test_half_of_the_pictures_are_mirrored() -> None:
    prepare, image = Preprocessing(16, 16), picture(0, 2)
    plain = prepare(image)
    flips = sum(torch.equal(prepare.augmented(image, seed), plain.flip(-1)) for seed in range(400))
    assert 160 < flips < 240  # four standard deviations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "Expected size of pictures from 8"),
        ({"resize": 10}, "Expected resize of pictures from 16"),
        ({"crop": "centre"}, "Unknown crop 'centre'.*Did you mean 'center'"),
        ({"interpolation": "cubic"}, "Unknown interpolation 'cubic'"),
        ({"std": (1.0, 0.0, 1.0)}, "three positive deviations"),
    ],
)
def test_preparations_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        Preprocessing(**{"size": 16, "resize": 16, **options})  # type: ignore[arg-type]


def test_an_epoch_has_batches_of_one_size_and_no_picture_twice() -> None:
    order = epoch_order(25, 8, seed=1, epoch=0)
    assert [len(batch) for batch in order] == [8, 8, 8]
    flat = [i for batch in order for i in batch]
    assert len(set(flat)) == 24
    assert order == epoch_order(25, 8, seed=1, epoch=0)
    assert order != epoch_order(25, 8, seed=1, epoch=1)
    assert order != epoch_order(25, 8, seed=2, epoch=0)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert number_from(0, "augment", 3, 7) == 5941963433555707119
    assert number_from(1, 2) != number_from(12)


def test_batches_come_in_the_order_asked_for_and_name_what_cannot_be_read(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    for i in range(4):
        picture(0, i).save(folder / f"{i}.png")
    (folder / "4.png").write_text("no picture")
    samples = Samples(Files(folder), [f"{i}.png" for i in range(5)], [5, 6, 7, 8, 9])
    prepare = Preprocessing(16, 16)
    for workers in (0, 1):
        found = list(load(samples, prepare, [[2, 0], [1, 3]], workers))
        assert [batch[1].tolist() for batch in found] == [[7, 5], [6, 8]]
        assert [batch[2].tolist() for batch in found] == [[2, 0], [1, 3]]
        with pytest.raises(PolycovError, match=r"^Cannot read the image '4.png': it is not a picture.$"):
            list(load(samples, prepare, [[4, 0]], workers))
        skipped: dict[int, str] = {}
        ((images, labels, numbers),) = load(samples, prepare, [[4, 0]], workers, skipped.__setitem__)
        assert (list(skipped), labels.tolist(), numbers.tolist(), len(images)) == ([4], [5], [0], 1)
