"""The examples run, on what is installed."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
WHEELS = Path(sys.prefix) / "wheels"  # where `make install` downloads them


@pytest.mark.slow
@pytest.mark.skipif(
    not (list(WHEELS.glob("rxnmapper-*.whl")) and list(WHEELS.glob("chemicals-*.whl"))),
    reason=f"needs pip download --no-deps -d {WHEELS} rxnmapper==0.4.3 chemicals==1.5.2",
)
def test_the_covariance_of_a_transformers_tokens_predicts_better_than_their_mean() -> None:
    errors = runpy.run_path(str(EXAMPLES / "transformer_tokens.py"))["main"](WHEELS)
    assert errors["isqrt-cov"] < 0.85 * errors["average"]
    assert errors["average"] < 30  # kelvin: the tokens carry the boiling point at all


def test_the_example_says_what_is_missing(tmp_path: Path) -> None:
    run = runpy.run_path(str(EXAMPLES / "transformer_tokens.py"))["main"]
    with pytest.raises(SystemExit, match=r"Expected the wheel of chemicals in .*pip download --no-deps"):
        run(tmp_path)
