"""The command ``polycov``."""

import sys
from importlib.util import find_spec

from polycov.errors import PolycovError


def main(arguments: list[str] | None = None) -> None:
    """Runs the command; ``arguments`` are those of the shell by default."""
    missing = [name for name in ("tyro", "rich", "matplotlib") if find_spec(name) is None]
    if missing:
        sys.exit(f"The command polycov needs {', '.join(missing)}. Install it with: pip install 'polycov[cli]'")

    import tyro

    from polycov.bench.command import Bench
    from polycov.bench.command import run as bench

    commands = {"bench": bench}
    options = tyro.extras.subcommand_cli_from_dict({"bench": Bench}, args=arguments, prog="polycov")
    try:
        commands[type(options).__name__.lower()](options)
    except PolycovError as error:
        sys.exit(f"polycov: {error}")
    except KeyboardInterrupt:
        sys.exit("polycov: stopped.")


if __name__ == "__main__":
    main()
