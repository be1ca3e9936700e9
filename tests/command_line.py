"""Running commands, as a shell sees them, on a small random network."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from polycov.commands.main import main

SMALL = ["--backbone", "test_resnet", "--weights", "none", "--stage", "2", "--size", "64", "--workers", "0"]
FROZEN = ["--pool", "average", "--freeze", "--epochs", "2", "--channels", "8", *SMALL]
PROBE = ["--probe", "--pool", "ipccp-ts", "--dim", "16", "--channels", "8", *SMALL]
COMPARE = ["--methods", "average", "isqrt-cov", "--seeds", "1", "--channels", "8", "--no-explain", *SMALL]


def stop(*arguments: str | Path) -> tuple[int, str]:
    """Returns the exit code of a command that ends early, and what it wrote to stderr."""
    errors = io.StringIO()
    with pytest.raises(SystemExit) as stopped, redirect_stderr(errors):
        main([str(argument) for argument in arguments])
    code = stopped.value.code
    if isinstance(code, str):  # as sys.exit(text) does
        return 1, code
    return int(code or 0), errors.getvalue().strip()


def fails(*arguments: str | Path) -> str:
    """Returns the sentence of a command that is asked for something impossible."""
    code, sentence = stop(*arguments)
    assert code == 2
    return sentence


def run(*arguments: str | Path) -> tuple[int, str]:
    """Returns the exit code of a command, and what it wrote; an exception is a traceback, which fails the test."""
    errors, output = io.StringIO(), io.StringIO()
    try:
        with redirect_stderr(errors), redirect_stdout(output):
            main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        code = stopped.code
        return (1, code) if isinstance(code, str) else (int(code or 0), errors.getvalue())
    return 0, output.getvalue()


def succeed(*arguments: str | Path) -> None:
    """Runs a command that must not fail."""
    code, text = run(*arguments)
    assert code == 0, text
