"""The device to compute on."""

import torch

from polycov.errors import PolycovError, first_line


def choose_device(name: str = "auto") -> torch.device:
    """Returns a device; "auto" is CUDA if available, then MPS, then the CPU.

    Raises:
        PolycovError: if the device is unknown or not available.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise PolycovError(
            f"The device {name!r} is not available: {first_line(error)}. Use 'auto' or 'cpu'."
        ) from error
    return device
