import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from torch.multiprocessing.spawn import spawn

from polycov.training.batch_norm import SynchronizedBatchNorm


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4))
    return layers.double()


def batch() -> torch.Tensor:
    return torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(1)).double() * 3 + 1


def process(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = network()
    with SynchronizedBatchNorm():
        out = model(batch()[rank::2])
    (out.square() * torch.arange(4).view(1, 4, 1, 1)).sum().backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    if rank == 0:
        state = {
            **model.state_dict(),
            **{f"{n}.grad": p.grad for n, p in model.named_parameters()},
            "out": out.detach(),
        }
        torch.save(state, f"{folder}/state.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_normalise_as_one(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = here  # the new processes import this file by its name
    sys.path.insert(0, here)
    try:
        import test_batch_norm  # type: ignore[import-not-found]

        spawn(test_batch_norm.process, (str(tmp_path),), nprocs=2)
    finally:
        sys.path.remove(here)
        del os.environ["PYTHONPATH"]
    found = torch.load(tmp_path / "state.pt")
    model = network()
    out = model(batch())
    (out.square() * torch.arange(4).view(1, 4, 1, 1)).sum().backward()
    torch.testing.assert_close(found["out"], out[::2])
    for name, value in model.state_dict().items():
        if not name.endswith("tracked"):
            torch.testing.assert_close(found[name], value)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[f"{name}.grad"], parameter.grad)


def test_alone_it_changes_nothing() -> None:
    one, other = network(), network()
    with SynchronizedBatchNorm():
        torch.testing.assert_close(one(batch()), other(batch()), rtol=0, atol=0)
