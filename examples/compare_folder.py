"""Compare pooling methods on a folder of images: which, and at what size?

    python examples/compare_folder.py FOLDER     # a folder per class; without one: the built-in typefaces

The same as `polycov compare FOLDER`, from Python: everything it shows is in the result. Run it again to resume.
"""

import sys
from typing import Any

import polycov

METHODS = ("average", "isqrt-cov", "mean-cov-fit")


def main(data: str = "typefaces", **options: Any) -> polycov.Comparison:
    """Compares, prints what was found, and returns the comparison."""
    wanted = {"methods": METHODS, "dims": (256,), "seeds": 3, "progress": polycov.LogProgress(print)} | options
    comparison = polycov.compare(data, **wanted)
    for point in comparison.points:
        print(f"{point.method:14} {point.dimensions:6} numbers  {100 * point.test:5.1f} %")
    print(comparison.recommendation)
    print("page:", comparison.report())
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
