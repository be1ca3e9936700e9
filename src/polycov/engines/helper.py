"""A helper process: ``python -m polycov.engines.helper OWNER``. Reads work and tasks, writes outcomes."""

import os
import pickle
import sys
from typing import Any, BinaryIO

from polycov.engines.work import Outcome, Work, perform
from polycov.system.signals import exit_when_stuck, stop_on_signals, stop_with


def main() -> None:
    """Does tasks until there are no more, or the owner is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing printed is taken for an answer
    try:
        with stop_on_signals(), exit_when_stuck():
            stop_with(parent=int(sys.argv[1]))
            serve(sys.stdin.buffer, answers)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)  # the owner reports it


def serve(messages: BinaryIO, answers: BinaryIO) -> None:
    """Answers each message: the work, and then tasks, each of them a tuple of one."""
    work: Work[Any, Any] | None = None
    while True:
        try:
            message = pickle.load(messages)
        except EOFError:
            return
        except Exception as error:  # made of something that only the owner can import
            outcome = Outcome(error=RuntimeError(f"A helper process cannot load what it was sent: {error!r}"))
        else:
            if isinstance(message, Work):
                work, outcome = message, Outcome()
            elif work is not None:
                outcome = perform(work, message[0])
        pickle.dump(outcome, answers)
        answers.flush()


if __name__ == "__main__":
    main()
