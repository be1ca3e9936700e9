"""The bounded part of ``make fuzz``, and proof that it finds what is wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polycov
from command_line import fails
from polycov.bench.fuzz.cases import make_case, specs
from polycov.bench.fuzz.check import run_case, run_cases, summary
from polycov.commands import main as cli
from polycov.pooling.first_order_pool import FirstOrderPool
from polycov.pooling.pool import Pool


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_random_cases_are_within_their_tolerance(number: int) -> None:
    outcome = run_case(number)
    assert outcome.problem is None, f"case {number}: {outcome}"


def test_every_method_has_cases_and_a_number_is_always_the_same_case() -> None:
    everything = {str(polycov.parse_spec(spec)) for spec in specs()}
    outcomes = list(run_cases(0, len(specs())))
    assert {outcome.spec for outcome in outcomes} == everything
    assert not [outcome for outcome in outcomes if outcome.problem]
    assert sum(row["cases"] for row in summary(outcomes)) == len(outcomes)
    for number in (3, 77):
        one, other = make_case(number), make_case(number)
        assert one.description == other.description
        assert torch.equal(one.x.nan_to_num(), other.x.nan_to_num())


def problems(count: int = 120) -> str:
    return " ".join(outcome.problem or "" for outcome in run_cases(0, count))


def test_a_small_error_a_foreign_exception_and_a_lost_nan_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Pool.features

    def slightly_wrong(self: Pool, *arguments: Any) -> torch.Tensor:
        return features(self, *arguments) * 1.01

    def failing(self: FirstOrderPool, *_: Any) -> torch.Tensor:
        raise KeyError("lost")

    def without_nan(self: Pool, *arguments: Any) -> torch.Tensor:
        return features(self, *arguments).nan_to_num()

    monkeypatch.setattr(Pool, "features", slightly_wrong)
    assert "error 1.0e-02, tolerance" in problems()
    monkeypatch.setattr(Pool, "features", without_nan)
    assert "NaN was not reported" in problems()
    monkeypatch.setattr(Pool, "features", features)
    monkeypatch.setattr(FirstOrderPool, "aggregate", failing)
    assert "KeyError: 'lost'" in problems(3)


def test_the_command_runs_cases_again_by_their_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--what", "fuzz", "--first", "5", "--cases", "2", "--out", str(tmp_path)]
    cli.main(command)
    out = " ".join(capsys.readouterr().out.split())
    assert "case 5: right; " in out
    assert "2 cases, from 5 to 6: all within their tolerance." in out
    assert len(list(tmp_path.glob("fuzz-*.csv"))) == 1


def test_the_command_fails_if_a_case_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = Pool.features
    monkeypatch.setattr(Pool, "features", lambda self, *arguments: features(self, *arguments) + 1)
    command = ["bench", "--what", "fuzz", "--first", "1", "--cases", "3", "--out", str(tmp_path)]
    assert "Run one again with: polycov bench --what fuzz --first" in fails(*command)
