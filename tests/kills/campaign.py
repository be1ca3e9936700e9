"""Kills every command again and again, and checks that it resumes to the result of an undisturbed run.

``make kills``; ``python -m kills.campaign --help`` in the folder ``tests`` lists the options.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from kills.runner import Runner, Trial
from kills.tasks import TASKS


def main() -> None:
    """Runs the campaign; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="commands to kill")
    parser.add_argument("--moments", type=int, default=50, help="random moments at which each is killed")
    parser.add_argument("--stops", type=int, default=10, help="random moments at which each gets SIGINT or SIGTERM")
    parser.add_argument(
        "--changes", action=argparse.BooleanOptionalAction, default=True, help="kill around each change"
    )
    parser.add_argument(
        "--fresh", action=argparse.BooleanOptionalAction, default=True, help="kill fresh interpreters, not forks"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args()
    problems: list[str] = []
    with TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        print(f"{'command':<14}{'changes':>8}{'kills':>7}{'lost':>6}{'slowest stop':>14}{'minutes':>9}", flush=True)
        for name in options.tasks:
            problems += disturb(runner, name, options).problems
    sys.exit(bool(problems))


def disturb(runner: Runner, name: str, options: argparse.Namespace) -> Trial:
    """Kills and stops one task as often as the options say, and prints its row."""
    begin, chance = time.monotonic(), random.Random(f"{options.seed} {name}")
    trial = Trial(runner, TASKS[name])
    if options.changes:
        trial.kill_around_every_change()
    trial.kill_at_random_moments(options.moments, chance, options.fresh)
    trial.stop_at_random_moments(options.stops, chance, options.fresh)
    minutes = (time.monotonic() - begin) / 60
    row = f"{name:<14}{len(trial.changes):>8}{trial.kills:>7}{len(trial.problems):>6}"
    print(f"{row}{trial.slowest:>12.2f} s{minutes:>9.1f}", *trial.problems, sep="\n    ", flush=True)
    return trial


if __name__ == "__main__":
    main()
