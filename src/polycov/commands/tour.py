"""Every method on one screen: size, kernel error and time. It needs torch alone.

Run it with ``python -m polycov.commands.tour``.
"""

import argparse

import torch

from polycov import __version__
from polycov.bench.tour import SAMPLES, tour


def main(arguments: list[str] | None = None) -> None:
    """Prints the tour; ``arguments`` are those of the shell by default."""
    parser = argparse.ArgumentParser(prog="python -m polycov.commands.tour", description=__doc__)
    parser.add_argument("--channels", type=int, default=128, help="channels of the features (default %(default)s)")
    parser.add_argument("--side", type=int, default=14, help="maps are side × side (default %(default)s)")
    parser.add_argument("--dim", type=int, default=2048, help="of the compact methods (default %(default)s)")
    options = parser.parse_args(arguments)

    print(f"polycov {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"features: {SAMPLES} maps of {options.channels} channels, {options.side}×{options.side} locations\n")
    print(f"{'method':<18} {'dims':>6} {'ms/map':>7} {'kernel error':>13}  spec")
    for row in tour(options.channels, options.side, options.dim):
        error = "" if row.kernel_error is None else f"{100 * row.kernel_error:.1f} %"
        print(f"{row.method:<18} {row.dimensions:>6} {row.milliseconds:>7.2f} {error:>13}  {row.spec}")
    print("\nkernel error: relative error of inner products between maps, against the uncompressed feature (5 seeds).")
    print("Random sketches halve it with four times the dimensions. Papers: polycov.get_method(name).__doc__")


if __name__ == "__main__":
    main()
