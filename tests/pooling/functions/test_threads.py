"""Decompositions by several threads: the same results, and no trace in the threads of others."""

import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch
from scipy import linalg
from torch import Tensor

from polycov.pooling.functions import decompositions, threads
from polycov.pooling.functions.decompositions import eigh


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def covariances(batch: int, channels: int = 64) -> Tensor:
    x = torch.randn(batch, 2 * channels, channels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.mT @ x / (2 * channels**2)


@pytest.mark.parametrize("batch", [2, 3, 7, 16])
def test_a_split_batch_has_the_eigenvalues_of_scipy(batch: int) -> None:
    matrix = covariances(batch)
    assert threads.count_parts(matrix) > 1
    values, vectors = eigh(matrix)
    for one, own_values, own_vectors in zip(matrix, values, vectors, strict=True):
        torch.testing.assert_close(own_values, torch.from_numpy(linalg.eigvalsh(one.numpy())))
        torch.testing.assert_close(own_vectors * own_values @ own_vectors.mT, one)


def test_a_matrix_is_decomposed_alike_in_any_batch() -> None:
    matrix = covariances(9)
    torch.testing.assert_close(eigh(matrix)[0][4:5], eigh(matrix[4:5])[0], rtol=0, atol=1e-15)


def test_one_bad_matrix_of_a_split_batch_stays_alone() -> None:
    matrix = covariances(6)
    matrix[2, 0, 0] = torch.nan
    assert eigh(matrix)[1].isnan().flatten(1).any(1).tolist() == [False, False, True, False, False, False]


def test_threads_of_others_keep_their_number_of_cores() -> None:
    eigh(covariances(4))
    seen = [torch.get_num_threads()]
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [2, 2]


def test_our_threads_use_one_core() -> None:
    seen: list[int] = []
    threads.in_threads(lambda _: seen.append(torch.get_num_threads()), torch.zeros(4).split(1))
    assert seen == [1, 1, 1, 1]


def test_an_error_in_a_thread_is_raised() -> None:
    def fail(_: Tensor) -> None:
        raise ValueError("bad part")

    with pytest.raises(ValueError, match="bad part"):
        threads.in_threads(fail, torch.zeros(2).split(1))


def test_an_interruption_while_threads_start_leaves_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Barrier):
        def wait(self, timeout: float | None = None) -> int:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(threads, "_EXECUTORS", {})
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Barrier", Interrupted)
        before = set(threading.enumerate())
        with pytest.raises(KeyboardInterrupt):
            eigh(covariances(4))
        started = set(threading.enumerate()) - before
    assert torch.get_num_threads() == 2
    for thread in started:
        thread.join(0.5)  # the executor is gone, so idle threads end
    assert not any(thread.is_alive() for thread in started)
    torch.testing.assert_close(eigh(covariances(4))[0], torch.linalg.eigvalsh(covariances(4)))


def test_a_forked_process_starts_its_own_threads() -> None:
    matrix = covariances(4)
    expected = eigh(matrix)[0].sum().item()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_sum, args=(sender, matrix), daemon=True)
    child.start()
    assert receiver.poll(60), "the child waits for threads that it does not have"
    assert receiver.recv() == pytest.approx(expected, rel=1e-12)
    child.join()


def _send_sum(sender: Connection, matrix: Tensor) -> None:
    torch.set_num_threads(2)
    sender.send(eigh(matrix)[0].sum().item())


def test_many_callers_at_once_get_their_own_results() -> None:
    inputs = [covariances(4) * (i + 1) for i in range(6)]
    expected = [torch.linalg.eigvalsh(x) for x in inputs]
    found: dict[int, Tensor] = {}
    callers = [threading.Thread(target=lambda i=i: found.update({i: eigh(inputs[i])[0]})) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for i, values in enumerate(expected):
        torch.testing.assert_close(found[i], values)


def test_results_carry_no_gradient_and_work_in_inference_mode() -> None:
    matrix = covariances(4).requires_grad_()
    assert not any(x.requires_grad for x in eigh(matrix))
    with torch.inference_mode():
        torch.testing.assert_close(eigh(covariances(4))[0], eigh(matrix)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit
def test_nothing_is_split_inside_transforms_or_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def record(x: Tensor) -> Tensor:
        seen.append(threads.count_parts(x))
        return x

    torch.func.vmap(record)(covariances(4).unsqueeze(0))
    torch.jit.trace(record, covariances(4), check_trace=False)
    torch.set_num_threads(1)
    record(covariances(4))
    torch.set_num_threads(2)
    record(covariances(1))
    record(covariances(4, channels=8))
    assert seen == [1, 1, 1, 1, 1]
    record(covariances(4))
    assert seen[-1] == 4
    monkeypatch.setattr(decompositions, "in_threads", None)
    torch.func.vmap(lambda x: eigh(x)[0])(covariances(4).unsqueeze(0))
