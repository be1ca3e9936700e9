"""Running commands that end early, as a shell sees them."""

import io
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from polycov.commands.main import main


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
