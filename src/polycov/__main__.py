"""``python -m polycov``, for launchers such as ``accelerate launch -m polycov``."""

from polycov.commands.main import main

main()
