"""The device to compute on."""

import torch

from polycov.errors import PolycovError


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
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise PolycovError(
            f"The device {name!r} is not available: {reason.rstrip('.')}. Use 'auto' or 'cpu'."
        ) from error
    return device
