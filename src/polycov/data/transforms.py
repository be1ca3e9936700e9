"""From an image to the tensor a network takes, with augmentation that depends only on a seed.

torchvision's transforms draw from the global random state, and may not import beside another build of torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polycov.errors import PolycovError, known

Crop = Literal["center", "random", "scale"]
CROPS = get_args(Crop)
LARGEST = 4096  # side of images; the activations of a network take some GB then
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """How images become tensors of shape (3, size, size).

    Attributes:
        size: the side of the crop that the network sees.
        resize: the side that images are first resized to: the shorter side, or both with ``squash``.
        squash: squash to a square rather than keep the proportions.
        mean: subtracted from each channel, for values from 0 to 1.
        std: divides each channel.
        interpolation: the filter for resizing.
        crop: in training, "center", "random" (of this size, anywhere) or "scale" (8 to 100 % of the area, as for
            ImageNet). In evaluation always the centre.
        flip: in training, mirror half of the images.
        draft: decode JPEGs at a reduced size, see `decoded_side`.
    """

    size: int
    resize: int
    squash: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop: Crop = "center"
    flip: bool = True
    draft: bool = False

    def __post_init__(self) -> None:
        for name, least in (("size", 8), ("resize", self.size)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
                raise PolycovError(f"Expected {name} of images from {least} to {LARGEST} pixels, got {value!r}.")
        if self.crop not in CROPS:
            raise PolycovError(f"Unknown crop {self.crop!r}. {known(str(self.crop), CROPS)}")
        if str(self.interpolation) not in FILTERS:
            raise PolycovError(
                f"Unknown interpolation {self.interpolation!r}. {known(str(self.interpolation), FILTERS)}"
            )
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in (*self.mean, *self.std))
        if not finite or len(self.mean) != 3 or len(self.std) != 3 or not all(value > 0 for value in self.std):
            raise PolycovError(
                f"Expected three means and three positive standard deviations, got {self.mean}, {self.std}."
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Preprocessing":
        """Returns the inverse of `dataclasses.asdict`, also after JSON, which has no tuples."""
        return cls(**values | {name: tuple(values[name]) for name in ("mean", "std")})

    def identity(self) -> dict[str, Any]:
        """Returns the attributes that tensors in evaluation depend on, as plain JSON values."""
        names = ("size", "resize", "squash", "interpolation", *(["draft"] if self.draft else []))
        return {name: getattr(self, name) for name in names} | {"mean": list(self.mean), "std": list(self.std)}

    @property
    def decoded_side(self) -> int | None:
        """The smallest side at which a JPEG may be decoded; None for full size, which random areas need.

        With ``draft``, twice the side it is resized to: the decoder shrinks by 2, 4 or 8, and the filter does the rest.
        """
        return 2 * self.resize if self.draft and self.crop != "scale" else None

    def __call__(self, image: Image.Image) -> Tensor:
        """Returns the tensor of an image in evaluation."""
        return self.normalise(self.pixels(image))

    def pixels(self, image: Image.Image) -> Tensor:
        """Returns the pixels of an image in evaluation, (H, W, 3) in uint8, for `normalise`."""
        image = self._resized(image)
        left, top = round((image.width - self.size) / 2), round((image.height - self.size) / 2)
        return torch.from_numpy(np.array(image.crop((left, top, left + self.size, top + self.size))))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Returns what the network takes, (…, 3, H, W), of pixels (…, H, W, 3)."""
        return normalise(pixels, torch.tensor(self.mean), torch.tensor(self.std))

    def augmented(self, image: Image.Image, seed: int) -> Tensor:
        """Returns the tensor of an image in training, augmented; the same seed gives the same tensor."""
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float = 0.0, high: float = 1.0) -> float:
            return low + (high - low) * float(torch.rand((), generator=generator))

        flip = self.flip and uniform() < 0.5
        if self.crop == "scale":
            box = _random_area(image.size, uniform)
            image = image.resize((self.size, self.size), FILTERS[self.interpolation], box)
        else:
            image = self._resized(image)
            across, down = (uniform(), uniform()) if self.crop == "random" else (0.5, 0.5)
            left, top = round((image.width - self.size) * across), round((image.height - self.size) * down)
            image = image.crop((left, top, left + self.size, top + self.size))
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.normalise(torch.from_numpy(np.array(image)))

    def _resized(self, image: Image.Image) -> Image.Image:
        longest = 16 * min(image.size)
        if max(image.size) > longest and not self.squash:  # only the centre will be seen: do not enlarge the rest
            left, top = max(image.width - longest, 0) // 2, max(image.height - longest, 0) // 2
            image = image.crop((left, top, image.width - left, image.height - top))
        scale = self.resize / min(image.size)
        sides = (round(image.width * scale), round(image.height * scale))
        sides = (self.resize, self.resize) if self.squash else sides
        return image if image.size == sides else image.resize(sides, FILTERS[self.interpolation])


def normalise(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Returns (x/255 − mean)/std of pixels (…, H, W, 3) in float32, as (…, 3, H, W)."""
    return ((pixels.float() / 255 - mean) / std).movedim(-1, -3)


def _random_area(size: tuple[int, int], uniform: Callable[[float, float], float]) -> tuple[float, float, float, float]:
    """A random box of 8 to 100 % of the area, from 3:4 to 4:3; the central square if ten tries do not fit."""
    width, height = size
    for _ in range(10):
        area = width * height * uniform(0.08, 1.0)
        ratio = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            left, top = uniform(0, width - across), uniform(0, height - down)
            return left, top, left + across, top + down
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
