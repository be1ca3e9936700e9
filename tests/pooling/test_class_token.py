import pytest
import torch

import polycov
from polycov.pooling.methods import reads_class_token
from samples import features


def test_the_class_token_is_the_first() -> None:
    x = features(2, 9)
    pool = polycov.create_pool("class_token", 4, prefix_tokens=2)
    assert torch.equal(pool(x), x[:, 0])
    assert polycov.create_pool("class_token | l2", 4, prefix_tokens=1)(x).norm(dim=1).tolist() == pytest.approx([1, 1])


OTHERS = [
    name for name in polycov.list_methods() if not reads_class_token(name) and not name.endswith(("-fit", "mean-cov"))
]


@pytest.mark.parametrize("method", [*OTHERS, "self_cross(2, heads=2) | sqrt(5) | flatten"])
def test_every_other_pool_leaves_prefix_tokens_out(method: str) -> None:
    x = features(2, 12)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    plain, prefixed = (polycov.create_pool(method, 4, prefix_tokens=k).double().eval() for k in (0, 3))
    torch.testing.assert_close(prefixed(x), plain(x[:, 3:]))
    torch.testing.assert_close(prefixed(x, mask), plain(x[:, 3:], mask[:, 3:]))


def test_a_class_token_that_is_not_there_is_reported() -> None:
    with pytest.raises(polycov.PolycovError, match=r"class token, got prefix_tokens=0 of 9: .*prefix_tokens=1"):
        polycov.create_pool("class_token", 4)(features(2, 9))
    with pytest.raises(polycov.PolycovError, match="prefix_tokens=9 of 9"):
        polycov.create_pool("average", 4, prefix_tokens=9)(features(2, 9))
    hidden = torch.arange(9) > torch.tensor([[-1], [0]])
    with pytest.raises(polycov.PolycovError, match="The mask hides the class token"):
        polycov.create_pool("class_token", 4, prefix_tokens=1)(features(2, 9), hidden)
    with pytest.raises(polycov.PolycovError, match="prefix_tokens of a pool to be a positive integer"):
        polycov.create_pool("class_token", 4, prefix_tokens=-1)


@pytest.mark.parametrize("prefix", [1, 3])
def test_class_token_and_mean_stand_side_by_side(prefix: int) -> None:
    x = features(2, 12)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    pool = polycov.create_pool("class-token-mean", 4, prefix_tokens=prefix)
    for count, found in ((12, pool(x)[1]), (7, pool(x, mask)[1])):
        expected = [*x[1, 0].tolist(), *(sum(column) / len(column) for column in x[1, prefix:count].mT.tolist())]
        assert found.tolist() == pytest.approx(expected, rel=1e-12)
    soft = torch.rand(2, 12, dtype=torch.float64) + 0.1
    means = (x[:, prefix:] * soft[:, prefix:, None]).sum(1) / soft[:, prefix:].sum(1, keepdim=True)
    torch.testing.assert_close(pool(x, soft), torch.cat([x[:, 0], means], 1))


@pytest.mark.parametrize("method", ["class-token", "class-token-mean"])
def test_class_tokens_keep_the_contract_of_pools(method: str) -> None:
    x = features(3, 9).requires_grad_()
    pool = polycov.create_pool(method, 4, prefix_tokens=2)
    assert torch.autograd.gradcheck(pool, x)
    singles = torch.cat([pool(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(singles, pool(x))
    vectorised = torch.func.vmap(lambda one: pool(one[None])[0])(x.detach())
    torch.testing.assert_close(vectorised, pool(x).detach())
    half = polycov.create_pool(method, 4, prefix_tokens=2)(x.detach().to(torch.bfloat16))
    torch.testing.assert_close(half.double(), pool(x).detach(), rtol=1e-2, atol=1e-2)
    with pytest.raises(polycov.NonFiniteError):
        pool(x.detach() * torch.nan)


def test_specs_say_whether_they_read_it() -> None:
    assert reads_class_token("class_token")
    assert reads_class_token("class_token | l2")
    assert reads_class_token("class-token-mean")
    assert not reads_class_token("isqrt-cov")
