import pytest
import torch

from polycov.bench import measure


def test_peak_memory_counts_what_is_allocated_at_the_same_time() -> None:
    def job() -> None:
        a = torch.zeros(2**20)  # 4 MiB
        del a
        b = torch.zeros(2**20)
        c = torch.zeros(2**19)
        del b, c

    assert measure.peak_memory(job, "cpu") == 6 * 2**20


def test_interleave_times_every_job_once_in_every_round_in_any_order() -> None:
    order: list[str] = []
    ticks: list[int] = []
    jobs: dict[str, measure.Job] = {name: lambda name=name: order.append(name) for name in "abc"}  # type: ignore[misc]
    times = measure.interleave(jobs, 4, lambda: ticks.append(len(order)))
    assert {name: len(t) for name, t in times.items()} == {"a": 4, "b": 4, "c": 4}
    rounds = [order[i : i + 3] for i in range(0, 15, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(map(tuple, rounds))) > 2
    assert ticks == [3, 6, 9, 12, 15]  # including the warm-up


def test_quartiles_of_one_value_are_that_value() -> None:
    assert measure.quartiles([2.0]) == (2.0, 2.0, 2.0)


def test_ratios_are_taken_round_by_round() -> None:
    assert measure.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        measure.ratios([1.0], [1.0, 2.0])


def test_a_training_step_computes_gradients_and_discards_that_of_the_input() -> None:
    layer = torch.nn.Linear(3, 2)
    x = torch.rand(4, 3)
    measure.training_step(layer, x)()
    assert layer.weight.grad is not None
    assert x.grad is None
    layer.zero_grad()
    measure.forward(layer, x)()
    assert layer.weight.grad is None
