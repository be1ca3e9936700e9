"""The command ``polycov``. Neither torch nor a command is imported before it is needed."""

import importlib
import io
import multiprocessing
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import NoReturn

from polycov.errors import MissingDependencyError, NonFiniteError, PolycovError, known
from polycov.system.memory import keep_freed_memory
from polycov.system.signals import exit_when_stuck, stop_on_signals, stop_with
from polycov.system.text import printable

COMMANDS = {
    "compare": "compare pooling methods on your images: which to use, and at what size",
    "report": "write the page, figures and tables of comparisons again",
    "train": "train a classifier: end to end, on a frozen backbone, or in closed form",
    "evaluate": "evaluate a run: accuracy with its interval, per class, confusions",
    "predict": "classify images",
    "explain": "show why: which regions of an image speak for its class, and against it",
    "app": "open a page: drop an image, see its classes and the evidence for them",
    "embed": "turn any number of images into compact features on disk",
    "search": "find the nearest images, or duplicates, in such features",
    "export": "write a trained model as ONNX, torch.export or a Hugging Face folder or Space",
    "cache": "list, check or remove the features in the cache",
    "list": "list the pooling methods, or the backbones",
    "bench": "measure time and memory of the methods",
}
WITHOUT_MODELS = ("list", "bench")  # these need the extra cli alone
# Exit codes: 0 done, FAILED otherwise, except for a mistake in what was asked for and an interruption.
FAILED, MISTAKE, INTERRUPTED = 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Runs the command; ``arguments`` are those of the shell by default, and then an interruption ends the process."""
    of_shell = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    _write_any_character()
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(help_text())
        sys.exit(0)
    if name == "--version":
        print(f"polycov {version('polycov')}")
        sys.exit(0)
    if name not in COMMANDS:
        _stop(f"Unknown command {name!r}. {known(name, COMMANDS)}", MISTAKE)
    missing = [package for package in ("tyro", "rich", "matplotlib") if find_spec(package) is None]
    if missing:
        sys.exit(_install_hint(name, ", ".join(missing)))
    try:
        _run(name, arguments[1:])
    except SystemExit as stopped:
        if of_shell and stopped.code == INTERRUPTED:
            _exit_at_once(INTERRUPTED)
        raise


def _write_any_character() -> None:
    """Lets no character end a command: not every terminal, and no pipe on Windows, can show them all."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def help_text() -> str:
    """Returns the list of commands."""
    rows = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: polycov [-h] [--version] COMMAND …\n\n"
        "Second-order pooling: compare, train and use it on your images.\n\n"
        f"commands:\n{rows}\n\n"
        "polycov COMMAND --help explains the options of a command."
    )


def _install_hint(name: str, missing: object) -> str:
    extra = "cli" if name in WITHOUT_MODELS else "train"
    return f"polycov {name} needs {missing}. Install with: pip install 'polycov[{extra}]'"


def _run(name: str, arguments: list[str]) -> None:
    """Runs a command; mistakes end in one sentence."""
    try:
        with stop_on_signals(), exit_when_stuck():
            if "TORCHELASTIC_RUN_ID" in os.environ:  # of torchrun and accelerate launch
                stop_with(parent=os.getppid())
            module = importlib.import_module(f"polycov.commands.{name}")
            keep_freed_memory()
            module.run(arguments)
            _leave_process_group()
    except (MissingDependencyError, NonFiniteError) as error:
        _stop(error)
    except PolycovError as error:
        _stop(error, MISTAKE)
    except ModuleNotFoundError as error:  # an installation with other extras
        sys.exit(_install_hint(name, error.name or error))
    except BrokenPipeError:  # stdout was closed, for example by head
        sys.stderr.close()
    except OSError as error:  # no space left, no permission: the system's own words
        _stop(error)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _stop(f"There is not enough memory: {str(error).partition(chr(10))[0] or 'something is too large'}")
    except KeyboardInterrupt as interruption:  # its text says how to resume
        _stop(f"stopped. {interruption}".rstrip(), INTERRUPTED)


def _out_of_memory(error: Exception) -> bool:
    """Whether memory could not be had; torch says so in words alone, or with an error of its own for a GPU."""
    named = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or named


def _stop(sentence: object, code: int = FAILED) -> NoReturn:
    print(printable(f"polycov: {sentence}"), file=sys.stderr)
    sys.exit(code)


def _leave_process_group() -> None:
    """Ends a process of a launcher. Threads of its group may outlive the group, and then an ordinary exit sometimes
    aborts; everything is written by now, so the process ends at once.
    """
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        _exit_at_once(0)


def _exit_at_once(code: int) -> NoReturn:
    """Ends this process and those that read images for it; Python would spend seconds on unloading its libraries."""
    for process in multiprocessing.active_children():
        process.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
