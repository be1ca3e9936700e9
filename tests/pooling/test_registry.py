import pytest
import torch
from torch import Tensor, nn

import polycov
from polycov.errors import SpecError
from polycov.pooling import registry
from polycov.pooling.moments import Moment
from polycov.pooling.registry import Kind, get_stage, list_stages, register


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_STAGES", dict(registry._STAGES))


def test_stages_are_listed_by_kind_and_name() -> None:
    names = [stage.name for stage in list_stages()]
    assert names == sorted(names)
    assert [stage.name for stage in list_stages("post")] == ["balance", "l2", "project", "signed_power", "signed_sqrt"]
    functions = [stage.name for stage in list_stages("function")]
    assert functions == sorted(functions)
    assert {"identity", "log", "polynomial", "power", "sqrt"} <= set(functions)
    kinds: tuple[Kind, ...] = ("source", "moment", "cross", "function", "vector", "first_order", "post")
    assert sum(len(list_stages(kind)) for kind in kinds) == len(names)


def test_the_signature_has_the_arguments_of_a_spec_without_those_of_the_pool() -> None:
    assert str(get_stage("tensor_sketch", ("vector",), "").signature) == "(dim: int, *, learnable: bool = False)"
    assert list(get_stage("triu", ("vector",), "").signature.parameters) == []
    assert list(get_stage("project", ("post",), "").signature.parameters) == ["dim", "fit", "shrinkage"]


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert get_stage("average", ("first_order",), "").summary == "The mean over locations."

    @register("post", "undocumented")
    class Undocumented(nn.Module):
        pass

    assert get_stage("undocumented", ("post",), "").summary


def test_a_name_registers_once_whatever_its_kind() -> None:
    with pytest.raises(SpecError, match="'triu' is already registered, as a vector"):
        register("post", "triu")(nn.Identity)
    assert get_stage("triu", ("vector",), "").kind == "vector"


def test_examples_default_to_the_bare_name() -> None:
    register("post", "first")(nn.Identity)
    register("post", "second", "second(1)", "second(2)")(nn.Identity)
    examples = {stage.name: stage.examples for stage in list_stages("post")}
    assert examples["first"] == ("first",)
    assert examples["second"] == ("second(1)", "second(2)")


def test_a_registered_stage_works_in_a_spec() -> None:
    @register("moment", "shifted", "shifted(2)")
    class Shifted(Moment):
        """Σ (x − shift)(x − shift)ᵀ."""

        def __init__(self, channels: int, shift: float) -> None:
            super().__init__(channels)
            self.shift = shift

        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            return tokens - self.shift, tokens.new_ones(len(tokens))

    x = torch.rand(2, 5, 3)
    pool = polycov.create_pool("shifted(2) | identity | flatten", 3)
    torch.testing.assert_close(pool(x), ((x - 2).mT @ (x - 2)).flatten(1))
    assert pool.spec == "shifted(2) | identity | flatten"


def test_an_unknown_name_lists_the_known_ones_of_that_kind() -> None:
    with pytest.raises(
        SpecError, match=r"Unknown moment 'cov' in 'cov . x'\. .*Known: bilinear, covariance, dropcov, gaus"
    ):
        get_stage("cov", ("moment",), "cov | x")


def test_a_stage_of_another_kind_is_rejected() -> None:
    with pytest.raises(SpecError, match="Expected a moment or first-order, got the vector 'triu' in 'triu'"):
        get_stage("triu", ("moment", "first_order"), "triu")
