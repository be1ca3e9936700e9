import pytest
from hypothesis import given
from hypothesis import strategies as st

import polycov
from polycov import SpecError, parse_spec

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)


@given(st.lists(numbers, min_size=1, max_size=6), st.booleans())
def test_any_polynomial_prints_back(coefficients: list[float], unit_trace: bool) -> None:
    text = f"covariance|polynomial({', '.join(map(repr, coefficients))}, unit_trace={unit_trace})|triu"
    spec = parse_spec(text)
    assert str(parse_spec(str(spec))) == str(spec)
    assert dict(spec.aggregation[1].arguments)["coefficients"] == tuple(coefficients)


def test_defaults_are_written_out_and_equal_specs_compare_equal() -> None:
    assert str(parse_spec("covariance|sqrt|triu")) == "covariance | sqrt(5) | triu"
    assert parse_spec("covariance | sqrt(method=5) | triu") == parse_spec("covariance|sqrt|triu")
    assert str(parse_spec("gem | l2")) == "gem(3) | l2"


def test_features_side_by_side_print_back_with_all_their_stages() -> None:
    spec = parse_spec("[gem|l2,[average , covariance|polynomial(1,2)|triu|l2]|balance( 1,2 )]|project(dim=3)")
    inner = "[average, covariance | polynomial(1, 2) | triu | l2] | balance(1, 2)"
    assert str(spec) == f"[gem(3) | l2, {inner}] | project(3)"
    assert parse_spec(str(spec)) == spec
    names = ["gem", "l2", "average", "covariance", "polynomial", "triu", "l2", "balance", "project"]
    assert [stage.stage.name for stage in spec.stages] == names
    assert not spec.first_order
    assert parse_spec("[average, [max | l2, gem]]").first_order


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected a spec such as"),
        ("covariance", "Expected a function after 'covariance'"),
        ("covariance | sqrt(5)", "Expected a vector after"),
        (
            "covarience | sqrt(5) | triu",
            "Unknown moment or cross or first-order 'covarience'.*Did you mean 'covariance'",
        ),
        (
            "covariance | sqrt(5) | tensorsketch(64)",
            "Unknown vector 'tensorsketch' in 'covariance . sqrt.5. . tensorsketch.64.'. Did you mean "
            "'tensor_sketch'. Known: count_sketch, flatten, random_maclaurin, rotated, tensor_sketch, triu.",
        ),
        ("covariance | triu | sqrt(5)", "Expected a function, got the vector 'triu'"),
        ("average | triu", "Expected a post, got the vector 'triu'"),
        ("covariance | sqrt(5) | tensor_sketch", r"does not match tensor_sketch\(dim.*missing"),
        ("covariance | sqrt(5) | tensor_sketch(8, 9)", "does not match"),
        ("covariance | sqrt(5) | tensor_sketch(8, seed=3)", "unexpected keyword argument 'seed'"),
        ("covariance | sqrt(5 | triu", "Cannot read 'sqrt"),
        ("covariance | sqrt(__import__('os')) | triu", "Cannot read"),
        ("covariance | sqrt([5]) | triu", "Cannot read"),
        ("covariance | a.b(5) | triu", "Cannot read"),
        ("covariance | | triu", "Cannot read ''"),
        ("covariance | sqrt(5) | tensor_sketch(dim=8, dim=9)", "Cannot read"),
        ("average | project(2) | project(1)", "at most one project"),
        ("[average]", r"Cannot read '\[average\]'.*at least two specs in brackets"),
        ("[]", "at least two specs"),
        ("[average,, max]", "at least two specs"),
        ("[average, max", "at least two specs"),
        ("[average, max]] | l2", "Cannot read"),
        ("[average, max](3) | l2", "at least two specs"),
        ("[average, covariance | sqrt(5)]", "Expected a vector after"),
        ("[average, covariance | sqrt(5 | triu]", "Cannot read 'sqrt"),
        ("[average, max] | triu", "Expected a post, got the vector 'triu'"),
        ("average | [max, average]", "Cannot read"),
        ("[average, isqrt-cov]", "use create_pool"),
    ],
)
def test_invalid_specs_are_rejected_with_a_clear_message(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(text)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("covariance | sqrt(0) | triu", "iterations of sqrt to be a positive integer, got 0"),
        ("covariance | sqrt(-1) | triu", "got -1"),
        ("covariance | sqrt(2.5) | triu", "got 2.5"),
        ("covariance | sqrt(exakt) | triu", r"Expected sqrt\(exact\)"),
        ("covariance | sqrt(5, gradient=own2) | triu", "Unknown gradient 'own2'"),
        ("covariance | power(0) | triu", "exponent of power to be a positive number, got 0"),
        ("covariance | power(0.5, 0) | triu", "degree of power"),
        ("covariance | log(exact, floor=2) | triu", "floor of log"),
        ("covariance | log(0) | triu", "degree of log"),
        ("covariance | polynomial() | triu", "finite numbers as coefficients"),
        ("covariance | polynomial(1, x) | triu", "finite numbers as coefficients"),
        ("covariance | sqrt(5) | tensor_sketch(0)", "dim of tensor_sketch to be a positive integer, got 0"),
        ("covariance | sqrt(5) | count_sketch(-3)", "dim of count_sketch"),
        ("covariance | sqrt(5) | random_maclaurin(True)", "dim of random_maclaurin"),
        ("average | project(5)", "at most the 4 features"),
        ("covariance | sqrt(5) | tensor_sketch(8, learnable=false)", "learnable of tensor_sketch to be True or False"),
        ("covariance | polynomial(1, unit_trace=no) | triu", "unit_trace of polynomial to be True or False"),
        ("covariance | polynomial(1" + 400 * "0" + ") | triu", "finite numbers"),
        ("covariance | sqrt(5, gradient=5) | triu", "Unknown gradient 5"),
        ("gem(0)", "p of gem"),
        ("[average, max] | balance(1)", "as many weights of balance as .* side by side, 2, or none, got 1"),
        ("average | balance(0)", r"weight of balance to be a number between 0 and 1e\+06, got 0"),
        ("[average, max | project(5)]", "at most the 4 features"),
        ("[average, max] | project(9)", "at most the 8 features"),
    ],
)
def test_invalid_numbers_are_rejected_with_a_clear_message(spec: str, message: str) -> None:
    with pytest.raises(polycov.PolycovError, match=message):
        polycov.create_pool(spec, 4)
