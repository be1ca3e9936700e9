"""Engines that compute on several threads."""

import subprocess
import sys

import pytest

FIRST = """
import sys, torch
torch.set_num_threads(8)
from polycov.models.backends.engines import Engine
engine = Engine("openvino", torch.nn.Conv2d(3, 4, 3).eval(), torch.zeros(1, 3, 8, 8))
sys.setswitchinterval(1e-6)
images = torch.rand(16, 3, 8, 8)
print(tuple(engine(images)[0].shape), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_the_first_inferences_of_a_process_do_not_wait_for_each_other(turn: int) -> None:
    """They did in a third of such processes, for ever."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST], capture_output=True, text=True, timeout=120)
    assert done.stdout == "(16, 4, 6, 6)\n", done.stderr
