import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from fake_images import make_image
from polycov.data.transforms import Crop, Preprocessing
from polycov.errors import PolycovError


def test_evaluation_resizes_the_shorter_side_and_crops_the_centre() -> None:
    image = make_image(0, 0, 40).resize((60, 40))
    x = Preprocessing(20, 30, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))(image)
    centre = np.asarray(image.resize((45, 30), Image.Resampling.BICUBIC).crop((12, 5, 32, 25)), dtype=np.float64) / 255
    expected = (centre - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(x.permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_squashing_keeps_the_whole_image() -> None:
    image = Image.new("RGB", (80, 20))
    image.paste((255, 0, 0), (0, 0, 40, 20))
    x = Preprocessing(10, 10, squash=True, interpolation="nearest")(image)
    assert x[0, :, :5].eq(1).all()
    assert x[0, :, 5:].eq(-1).all()


def test_a_very_long_image_is_not_enlarged_as_a_whole() -> None:
    x = Preprocessing(320, 320)(Image.new("RGB", (60000, 1), "white"))
    assert x.shape == (3, 320, 320)
    assert x.eq(1).all()


@pytest.mark.parametrize("crop", ["center", "random", "scale"])
def test_augmentation_depends_only_on_the_seed(crop: Crop) -> None:
    image = make_image(1, 1).resize((60, 40))
    preprocessing = Preprocessing(16, 32, crop=crop)
    state = torch.get_rng_state()
    images = [preprocessing.augmented(image, seed) for seed in range(20)]
    assert torch.equal(torch.get_rng_state(), state)  # the global random state is untouched
    assert all(x.shape == (3, 16, 16) for x in images)
    assert torch.equal(images[3], preprocessing.augmented(image, 3))
    different = {x.numpy().tobytes() for x in images}
    assert len(different) == (2 if crop == "center" else 20)  # the centre and its mirror image


def test_without_augmentation_training_sees_the_same_as_evaluation() -> None:
    preprocessing = Preprocessing(16, 20, flip=False)
    image = make_image(0, 1)
    torch.testing.assert_close(preprocessing.augmented(image, 5), preprocessing(image), rtol=0, atol=0)


def test_half_of_the_images_are_mirrored() -> None:
    preprocessing, image = Preprocessing(16, 16), make_image(0, 2)
    plain = preprocessing(image)
    flips = sum(torch.equal(preprocessing.augmented(image, seed), plain.flip(-1)) for seed in range(400))
    assert 160 < flips < 240  # four standard deviations


def test_preprocessing_survives_json() -> None:
    preprocessing = Preprocessing(16, 20, mean=(0.1, 0.2, 0.3), crop="scale", flip=False)
    assert Preprocessing.from_dict(json.loads(json.dumps(asdict(preprocessing)))) == preprocessing


def test_identity_is_plain_and_ignores_augmentation() -> None:
    preprocessing = Preprocessing(16, 20, crop="scale", flip=False)
    assert preprocessing.identity() == Preprocessing(16, 20).identity()
    assert preprocessing.identity() == json.loads(json.dumps(preprocessing.identity()))
    assert preprocessing.identity() != Preprocessing(16, 20, std=(0.5, 0.5, 0.6)).identity()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "Expected size of images from 8 to 4096 pixels, got 0"),
        ({"resize": 10}, "Expected resize of images from 16"),
        ({"size": True}, "Expected size of images from 8 to 4096 pixels, got True"),
        ({"crop": "centre"}, "Unknown crop 'centre'.*Did you mean 'center'"),
        ({"interpolation": "cubic"}, "Unknown interpolation 'cubic'"),
        ({"crop": {}}, "Unknown crop {}"),
        ({"interpolation": []}, r"Unknown interpolation \[\]"),
        ({"std": (1.0, 0.0, 1.0)}, "three positive standard deviations"),
        ({"mean": (1.0, 0.0)}, "Expected three means"),
        ({"mean": (1.0, float("nan"), 0.0)}, "Expected three means"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(PolycovError, match=message):
        Preprocessing(**{"size": 16, "resize": 16, **options})  # type: ignore[arg-type]


def test_draft_is_part_of_the_identity_and_leaves_enough_pixels() -> None:
    plain, draft = Preprocessing(20, 30), Preprocessing(20, 30, draft=True)
    assert "draft" not in plain.identity()
    assert draft.identity() == plain.identity() | {"draft": True}
    assert (plain.decoded_side, draft.decoded_side) == (None, 60)
    assert Preprocessing(20, 30, draft=True, crop="scale").decoded_side is None
