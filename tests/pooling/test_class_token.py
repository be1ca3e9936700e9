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


@pytest.mark.parametrize("method", ["average", "gem", "efficient-probe", "isqrt-cov", "mpn-cov", "deep-bdc"])
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


def test_specs_say_whether_they_read_it() -> None:
    assert reads_class_token("class_token")
    assert reads_class_token("class_token | l2")
    assert not reads_class_token("isqrt-cov")
