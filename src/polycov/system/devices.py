"""Which device to compute on."""

import torch

from polycov.errors import PolycovError


def choose_device(name: str = "auto") -> torch.device:
    """Returns a device: "auto" is CUDA where there is a GPU, then MPS, then the CPU.

    Raises:
        PolycovError: if the device named is not available.

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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolycovError(f"The device {name!r} is not available: {reason}") from error
    return device
