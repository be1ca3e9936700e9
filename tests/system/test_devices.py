import pytest
import torch

from polycov.errors import PolycovError
from polycov.system.devices import choose_device


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_cuda_then_mps_then_cpu(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device() == choose_device("auto") == torch.device(expected)


def test_a_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cpu:x", "cuda:99", "mps"])
def test_an_unknown_or_unavailable_device_is_named(name: str) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has an MPS device")
    with pytest.raises(PolycovError, match=rf"^The device '{name}' is not available: .*[^.]\. Use 'auto' or 'cpu'\.$"):
        choose_device(name)
