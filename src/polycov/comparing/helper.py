"""A helper process of a comparison: ``python -m polycov.comparing.helper OPTIONS PARENT``."""

import json
import sys

from polycov.comparing.compare import ComparisonJob
from polycov.comparing.options import CompareOptions
from polycov.comparing.prepare import prepare
from polycov.comparing.schedule import StopRequest
from polycov.errors import PolycovError
from polycov.progress import Progress
from polycov.system.structure import structure


def main() -> None:
    """Measures settings beside the process that started this one, and says nothing unless something fails."""
    options = structure(CompareOptions, json.loads(sys.argv[1]), "the options of a helper")
    stop = StopRequest()
    try:
        with stop.listening():
            job = ComparisonJob(prepare(options, Progress()))
            job.plan()
            job.execute(stop, parent=int(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(1)  # the parent process reports it
    except (PolycovError, OSError) as error:
        sys.exit(f"polycov: {error}")


if __name__ == "__main__":
    main()
