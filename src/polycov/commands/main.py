"""The command ``polycov``."""

import ctypes
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Union

from polycov.errors import PolycovError

MORE = " The same command goes on where it was."


def main(arguments: list[str] | None = None) -> None:
    """Runs the command; ``arguments`` are those of the shell by default."""
    missing = [name for name in ("tyro", "rich", "matplotlib") if find_spec(name) is None]
    if missing:
        sys.exit(f"The command polycov needs {', '.join(missing)}. Install it with: pip install 'polycov[cli]'")
    arguments = sys.argv[1:] if arguments is None else arguments
    _keep_freed_memory()
    try:
        options, run = _parse(arguments)
        run(options)
        _leave_group()
    except PolycovError as error:
        sys.exit(f"polycov: {error}")
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
    except OSError as error:  # no space left, no permission: the system says it well
        sys.exit(f"polycov: {error}")
    except KeyboardInterrupt:
        if "POLYCOV_JOB" in os.environ:  # a helper: the process that started it speaks
            sys.exit(1)
        goes_on = {"train": " Go on with: polycov train --resume RUN", "compare": MORE, "embed": MORE}
        sys.exit(f"polycov: stopped.{goes_on.get(arguments[0], '') if arguments else ''}")


def _leave_group() -> None:
    """Leaves the group of processes that a launcher started: its threads must not outlive it, or the program aborts."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _keep_freed_memory() -> None:
    """Lets a CPU use freed memory again rather than return it to the system and ask for it anew.

    The C library does so for blocks of more than 32 MB, such as activations, and clearing their pages takes longer
    than the network. Only glibc has this switch; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _parse(arguments: list[str]) -> tuple[Any, Callable[[Any], None]]:
    import tyro

    from polycov.commands import bench, compare, report, train
    from polycov.commands import list as listing
    from polycov.inference import embed, evaluate, predict
    from polycov.models import export

    training = train.defaults(arguments) if arguments[:1] == ["train"] else train.Train()
    commands: dict[str, tuple[Any, Any, Callable[[Any], None]]] = {
        "compare": (compare.Compare, compare.Compare(), compare.run),
        "report": (report.Report, tyro.MISSING_NONPROP, report.run),
        "train": (train.Train, training, train.run),
        "evaluate": (evaluate.Evaluate, tyro.MISSING_NONPROP, evaluate.run),
        "predict": (predict.Predict, tyro.MISSING_NONPROP, predict.run),
        "export": (export.Export, tyro.MISSING_NONPROP, export.run),
        "embed": (embed.Embed, tyro.MISSING_NONPROP, embed.run),
        "list": (listing.List, listing.List(), listing.run),
        "bench": (bench.Bench, bench.Bench(), bench.run),
    }
    kinds: Any = Union[  # noqa: UP007 (made here, not written)
        tuple(Annotated[kind, tyro.conf.subcommand(name, default=given)] for name, (kind, given, _) in commands.items())
    ]
    options: Any = tyro.cli(
        kinds,
        args=arguments,
        prog="polycov",
        description="Second-order pooling: train, compare and explain it on your pictures.",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    return options, next(run for kind, _, run in commands.values() if type(options) is kind)


if __name__ == "__main__":
    main()
