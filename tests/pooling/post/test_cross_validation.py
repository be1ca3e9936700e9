import numpy as np
import pytest
import torch

import polycov
from polycov.errors import PolycovError
from polycov.pooling.post import cross_validation
from polycov.pooling.post.balance import Balance
from polycov.pooling.post.classes import class_components
from polycov.pooling.post.cross_validation import STRENGTHS, BlockMixture, choose_weights
from polycov.pooling.post.statistics import Statistics


def data(samples: int, columns: int, signal: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    means = signal * torch.randn(3, columns, generator=generator, dtype=torch.float64)
    return torch.randn(samples, columns, generator=generator, dtype=torch.float64) + means[labels] + 5, labels


def collect(rows: torch.Tensor, labels: torch.Tensor | None, batch: int = 7) -> Statistics:
    statistics = Statistics()
    for i in range(0, len(rows), batch):
        statistics.update(rows[i : i + batch], None if labels is None else labels[i : i + batch])
    return statistics


def naive_errors(rows: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """The generalised cross-validation error of a ridge with an intercept, from the n × n matrix of its outputs."""
    x, y = rows.numpy() - rows.numpy().mean(0), np.eye(int(labels.max()) + 1)[labels.numpy()]
    n = len(x)
    errors = []
    for strength in STRENGTHS:
        alpha = strength * (x**2).sum() / n
        outputs = x @ np.linalg.solve(x.T @ x + alpha * np.eye(x.shape[1]), x.T) + np.ones((n, n)) / n
        errors.append(n * ((y - outputs @ y) ** 2).sum() / (n - np.trace(outputs)) ** 2)
    return errors


@pytest.mark.parametrize(("samples", "columns"), [(40, 6), (12, 20)])
def test_the_error_and_the_strength_are_those_of_the_definition(samples: int, columns: int) -> None:
    rows, labels = data(samples, columns)
    found = BlockMixture(collect(rows, labels), (columns,), torch.ones(columns, dtype=torch.float64)).choose((1.0,))
    errors = naive_errors(rows, labels)
    np.testing.assert_allclose(found.error, min(errors), rtol=1e-8)
    assert found.strength == STRENGTHS[int(np.argmin(errors))]


@pytest.mark.parametrize(("samples", "columns"), [(40, 6), (12, 20)])
def test_the_error_of_weighted_blocks_is_that_of_the_weighted_features(samples: int, columns: int) -> None:
    rows, labels = data(samples, columns)
    factors = torch.tensor([2.0] * 4 + [0.5] * (columns - 4), dtype=torch.float64)
    mixture = BlockMixture(collect(rows, labels), (4, columns - 4), factors)
    for weights in [(1.0, 3.0), (0.0, 1.0), (2.0, 0.0)]:
        scale = torch.tensor([weights[0]] * 4 + [weights[1]] * (columns - 4), dtype=torch.float64)
        expected = min(naive_errors(rows * factors * scale, labels))
        np.testing.assert_allclose(mixture.choose(weights).error, expected, rtol=1e-8)


def test_it_is_close_to_the_error_of_images_left_out() -> None:
    rows, labels = data(200, 10, signal=0.5)
    found = BlockMixture(collect(rows, labels), (10,), torch.ones(10, dtype=torch.float64)).choose((1.0,))
    indicators = np.eye(3)[labels.numpy()]
    total = 0.0
    for i in range(200):
        x, y = np.delete(rows.numpy(), i, 0), np.delete(indicators, i, 0)
        centred = x - x.mean(0)
        alpha = found.strength * (centred**2).sum() / len(x)
        weight = np.linalg.solve(centred.T @ centred + alpha * np.eye(10), centred.T @ y)
        total += float((((rows[i].numpy() - x.mean(0)) @ weight + y.mean(0) - indicators[i]) ** 2).sum())
    assert found.error == pytest.approx(total / 200, rel=0.02)


@pytest.mark.parametrize("samples", [60, 400])
def test_a_block_of_noise_is_left_out_and_informative_ones_are_kept(samples: int) -> None:
    good, labels = data(samples, 10, signal=1.0)
    other, _ = data(samples, 10, signal=1.0, seed=1)
    noise = torch.randn(samples, 100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for blocks, rows in [((100, 10), torch.cat([noise, good], 1)), ((10, 100), torch.cat([good, noise], 1))]:
        weights = choose_weights(collect(rows, labels), blocks, torch.ones(110, dtype=torch.float64))
        informative = blocks.index(10)
        assert weights[1 - informative] <= 0.25 * weights[informative]
    both = choose_weights(collect(torch.cat([good, other], 1), labels), (10, 10), torch.ones(20, dtype=torch.float64))
    assert all(weight > 0 for weight in both)


def test_no_choice_depends_on_the_batches_or_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = data(50, 12, signal=0.5)
    factors = torch.ones(12, dtype=torch.float64)
    mixtures = [BlockMixture(collect(rows, labels, batch), (4, 8), factors) for batch in (3, 50)]
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    mixtures.append(BlockMixture(collect(rows[order], labels[order]), (4, 8), factors))
    errors = [mixture.choose((1.0, 2.0)).error for mixture in mixtures]
    np.testing.assert_allclose(errors, errors[0], rtol=1e-9)
    monkeypatch.setattr(cross_validation, "COMPONENTS", 3)
    assert BlockMixture(collect(rows, labels), (4, 8), factors).scatter.shape == (6, 6)


def test_one_class_one_sample_and_constant_features_keep_equal_weights() -> None:
    factors = torch.ones(6, dtype=torch.float64)
    rows = data(8, 6)[0]
    for x, y in [
        (rows, torch.zeros(8, dtype=torch.long)),
        (rows[:1], torch.zeros(1, dtype=torch.long)),
        (torch.ones(8, 6), torch.arange(8) % 2),
    ]:
        assert choose_weights(collect(x, y), (2, 4), factors) == (1.0, 1.0)


def test_balance_brings_blocks_to_the_chosen_weights() -> None:
    good, labels = data(60, 10)
    rows = torch.cat([good, 100 * torch.randn(60, 50, generator=torch.Generator().manual_seed(2)).double()], 1)
    balance = Balance(fit="classes", features=60, blocks=(10, 50))
    balance.fit(collect(rows, labels))
    spread = balance(rows).var(0, correction=0)
    energies = spread[:10].sum(), spread[10:].sum()
    assert energies[1] < 0.1 * energies[0]


def test_labels_are_needed_and_weights_are_not() -> None:
    rows, _ = data(30, 6)
    with pytest.raises(PolycovError, match="needs labels"):
        Balance(fit="classes", features=6, blocks=(2, 4)).fit(collect(rows, None))
    with pytest.raises(PolycovError, match="chooses the weights"):
        Balance(1.0, 2.0, fit="classes", features=6, blocks=(2, 4))
    with pytest.raises(PolycovError, match="Unknown fit 'clases' of balance"):
        Balance(fit="clases", features=6, blocks=(2, 4))


@pytest.mark.parametrize(("samples", "columns"), [(40, 6), (12, 20)])
def test_the_chosen_shrinkage_of_a_projection_is_the_one_with_the_smallest_error(samples: int, columns: int) -> None:
    rows, labels = data(samples, columns, signal=0.5)
    best = STRENGTHS[int(np.argmin(naive_errors(rows, labels)))]
    statistics = collect(rows, labels)
    torch.testing.assert_close(class_components(statistics, 3, None), class_components(statistics, 3, best))
    spec = "average | project(3, fit=classes, shrinkage={})"
    pools = [polycov.create_pool(spec.format(value), columns) for value in ("auto", best)]
    for pool in pools:
        pool.fit([(rows[:, None].float(), labels)])
    torch.testing.assert_close(pools[0].state_dict(), pools[1].state_dict())


def test_only_a_projection_to_classes_has_a_shrinkage() -> None:
    with pytest.raises(PolycovError, match="Only project"):
        polycov.create_pool("average | project(3, shrinkage=auto)", 6)
    with pytest.raises(PolycovError, match="shrinkage of project"):
        polycov.create_pool("average | project(3, fit=classes, shrinkage=some)", 6)
