"""A helper process of a comparison: ``python -m polycov.comparing.helper OPTIONS PARENT``."""

import json
import sys

from polycov.comparing.compare import ComparisonJob
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import prepare
from polycov.errors import PolycovError
from polycov.progress import Progress
from polycov.system.signals import exit_when_stuck, stop_on_signals, stop_with
from polycov.system.structure import structure


def main() -> None:
    """Measures settings beside the process that started this one, and says nothing unless something fails."""
    options = structure(CompareOptions, json.loads(sys.argv[1]), "the options of a helper")
    try:
        with stop_on_signals() as stop, exit_when_stuck():
            stop_with(parent=int(sys.argv[2]))
            job = ComparisonJob(prepare(options, Progress()))
            job.plan()
            job.execute(stop)
    except KeyboardInterrupt:
        sys.exit(1)  # the parent process reports it
    except (PolycovError, OSError) as error:
        sys.exit(f"polycov: {error}")


if __name__ == "__main__":
    main()
