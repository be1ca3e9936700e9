import subprocess
import sys

import pytest

PROGRAM = "from polycov.system.memory import keep_freed_memory; print(keep_freed_memory())"


@pytest.mark.skipif(sys.platform != "linux", reason="a switch of glibc")
@pytest.mark.parametrize(("variable", "expected"), [("ANYTHING", "True"), ("MALLOC_TRIM_THRESHOLD_", "False")])
def test_what_the_user_set_is_left_alone(variable: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1000000")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
