"""``python -m polycov``, for launchers such as ``accelerate launch -m polycov``."""

from polycov.cli import main

main()
