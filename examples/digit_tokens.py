"""Local features of the handwritten digits in scikit-learn, for the examples: real data without a download."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor


def digit_tokens(count: int = 800) -> tuple[Tensor, Tensor]:
    """Tokens (count, 64, 10), one for each pixel, and the digits: intensity, gradients and position of the pixel.

    This is the region covariance of Tuzel, Porikli and Meer (2006); a network would take its place.
    """
    pixels, labels = load_digits(return_X_y=True)
    images = pixels[:count].reshape(-1, 8, 8) / 16
    down, right = np.gradient(images, axis=(1, 2))
    y, x = np.meshgrid(np.linspace(-1, 1, 8), np.linspace(-1, 1, 8), indexing="ij")
    positions = [np.broadcast_to(position, images.shape) for position in (y, x, y * x, y**2, x**2)]
    local = np.stack([images, down, right, abs(down), abs(right), *positions], -1)
    return torch.from_numpy(local.reshape(len(images), 64, 10)).float(), torch.from_numpy(labels[:count])
