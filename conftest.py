import math
import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script that runs the tests in the background ignores Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub is imported: no test looks for a network

import pytest
import torch
from hypothesis import settings

import polycov

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _repeatable(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, math=math, polycov=polycov)
