"""Compare pooling methods on a folder of images: which, and at what size?

    python examples/compare_folder.py FOLDER     # a folder per class; without one: a few of the built-in typefaces

The same as `polycov compare FOLDER`, from Python: everything it shows is in the result.
"""

import sys
from pathlib import Path

import polycov


def main(data: str = "typefaces", out: Path | None = None, **options: object) -> polycov.Comparison:
    """Compares, prints the recommendation, and returns the comparison."""
    wanted: dict[str, object] = {"methods": ("average", "isqrt-cov", "mean-cov-fit"), "dims": (256,), "seeds": 3}
    comparison = polycov.compare(data, out=out, progress=polycov.LogProgress(print), **(wanted | options))  # type: ignore[arg-type]
    for row in comparison.summary.rows:
        print(*row[:6])
    print(comparison.recommendation)
    print("page:", comparison.report())
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
