import numpy as np
import torch
from torch import nn

import polycov
from polycov import functional as F
from polycov.pooling.attention import AttentiveProbe, EfficientProbe, SimPool, layer_norm
from samples import features


def test_the_attentive_probe_is_the_cross_attention_of_torch() -> None:
    probe = AttentiveProbe(12, 3, seed=1).double()
    with torch.no_grad():
        probe.query.mul_(100)
        for parameter in (probe.scale, probe.shift, probe.bias):
            parameter.add_(torch.linspace(-0.5, 0.5, 12, dtype=torch.float64))
    attention = nn.MultiheadAttention(12, 3, bias=True, batch_first=True).double()
    eye = torch.eye(12, dtype=torch.float64)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([eye, probe.key, probe.value]))
        attention.in_proj_bias.copy_(torch.cat([torch.zeros(24, dtype=torch.float64), probe.bias]))
        attention.out_proj.weight.copy_(eye)
        attention.out_proj.bias.zero_()
    x = features(2, 9, 12)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    keys = nn.functional.layer_norm(x, (12,), probe.scale, probe.shift)
    query = probe.query.expand(2, 1, 12)
    expected = attention(query, keys, keys, key_padding_mask=~mask)[0].squeeze(1)
    torch.testing.assert_close(probe(x, mask), expected)


def test_the_efficient_probe_is_a_loop_over_queries() -> None:
    probe, x = EfficientProbe(8, 4, seed=2).double(), features(2, 9, 8)
    with torch.no_grad():
        probe.queries.mul_(100)
    queries, value = probe.queries.detach().numpy(), probe.value.detach().numpy()
    for sample, found in zip(x.numpy(), probe(x).detach().numpy(), strict=True):
        parts = []
        for m in range(4):
            logits = np.array([queries[m] @ token / np.sqrt(8) for token in sample])
            weights = np.exp(logits) / np.exp(logits).sum()
            parts.append(sum(w * (value @ token)[2 * m : 2 * m + 2] for w, token in zip(weights, sample, strict=True)))
        np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-9)


def test_simpool_is_a_loop_over_its_definition() -> None:
    x = features(2, 9, 5)
    for sample, found in zip(x.numpy(), F.simpool(x, 1.25).numpy(), strict=True):

        def normalise(v: np.ndarray) -> np.ndarray:
            return (v - v.mean()) / np.sqrt(v.var() + 1e-5)

        logits = np.array([normalise(sample.mean(0)) @ normalise(token) / np.sqrt(5) for token in sample])
        weights = np.exp(logits) / np.exp(logits).sum()
        total = sum(w * (t - sample.min() + 1e-6) ** 1.25 for w, t in zip(weights, sample, strict=True))
        np.testing.assert_allclose(found, total ** (1 / 1.25), rtol=1e-9)


def test_equal_logits_give_the_mean_of_the_values() -> None:
    probe, x = EfficientProbe(6, 2).double(), features(2, 9, 6)
    with torch.no_grad():
        probe.queries.zero_()
        probe.value.copy_(torch.eye(6))
    torch.testing.assert_close(probe(x), F.average(x))


def test_groups_need_not_divide_the_channels_and_are_at_most_as_many() -> None:
    x = features(2, 9, 5)
    assert EfficientProbe(5, 3).double()(x).shape == (2, 5)
    groups = EfficientProbe(5, 3).group_of(5, torch.device("cpu")).tolist()
    assert groups == [0, 0, 1, 1, 2]
    assert len(EfficientProbe(5, 99).queries) == 5


def test_shares_add_up_and_those_of_padding_are_zero() -> None:
    x = features(2, 9, 6)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    for pool in (AttentiveProbe(6, 2).double(), EfficientProbe(6, 3).double(), SimPool(6)):
        shares = pool.shares(x, mask)
        torch.testing.assert_close(shares.sum(1), pool(x, mask))
        assert (shares[~mask] == 0).all()


def test_the_seed_determines_the_weights() -> None:
    a, b, c = (polycov.create_pool("efficient-probe", 6, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


def test_trained_queries_find_the_token_that_matters() -> None:
    # One token of each sample carries the class in its first channel, and a marker in its second.
    generator = torch.Generator().manual_seed(0)
    x, y = 0.3 * torch.randn(256, 16, 8, generator=generator), torch.randint(0, 2, (256,), generator=generator)
    where = torch.randint(0, 16, (256,), generator=generator)
    x[torch.arange(256), where, 0] += 2.0 * y - 1
    x[torch.arange(256), where, 1] += 4
    pool = polycov.create_pool("efficient-probe", 8, queries=2)
    layer = nn.Linear(8, 2)
    optimizer = torch.optim.Adam([*pool.parameters(), *layer.parameters()], lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(pool(x)), y).backward()
        optimizer.step()
    assert float((layer(pool(x)).argmax(1) == y).double().mean()) > 0.95


def test_the_layer_norm_is_that_of_torch_and_equal_channels_become_zero() -> None:
    x = features(2, 5, 7)
    torch.testing.assert_close(layer_norm(x), nn.functional.layer_norm(x, (7,)))
    equal = torch.full((1, 9, 3), 1.7) * torch.linspace(-3, 40, 9)[:, None]
    assert layer_norm(equal).abs().max() < 1e-10
