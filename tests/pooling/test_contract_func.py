"""Every registered stage and method under the transforms of `torch.func`, and in forward mode."""

import copy

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, stack_module_state, vmap

from samples import APPROXIMATE, CHANNELS, SPECS, features, make

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's forward mode

each_spec = pytest.mark.parametrize("spec", SPECS)
LEARNABLE = [
    spec for spec in SPECS if list(make(spec).parameters()) and "dropcov" not in spec
]  # it only acts in training


def batches() -> Tensor:
    """Three batches of tokens, (3, 2, N, C)."""
    return features(6, 7).reshape(3, 2, 7, CHANNELS)


def masks() -> Tensor:
    """A mask for each of them, (3, 2, N)."""
    return torch.arange(7) < torch.tensor([7, 6, 5, 7, 5, 6]).reshape(3, 2, 1)


def cubes(pool: torch.nn.Module, x: Tensor) -> Tensor:
    """A loss whose second derivative depends on the first derivative of the pool."""
    return pool(x).pow(3).sum()


def gradient(pool: torch.nn.Module, x: Tensor) -> Tensor:
    """The gradient of the loss by autograd alone."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cubes(pool, x), x)[0]


def close(result: Tensor, expected: Tensor, bound: float = 1e-9) -> None:
    torch.testing.assert_close(result, expected, rtol=bound, atol=bound)


@each_spec
def test_vmap_equals_a_loop(spec: str) -> None:
    pool, xs, ms = make(spec), batches(), masks()
    expected = torch.stack([pool(x) for x in xs])
    close(vmap(pool)(xs), expected)
    close(vmap(pool, in_dims=2, out_dims=1)(xs.movedim(0, 2)), expected.movedim(0, 1))
    close(vmap(vmap(pool))(xs.unsqueeze(2)).squeeze(2), expected)
    close(vmap(pool)(xs, ms), torch.stack([pool(x, m) for x, m in zip(xs, ms, strict=True)]))
    close(vmap(pool, in_dims=(None, 0))(xs[0], ms), torch.stack([pool(xs[0], m) for m in ms]))


@each_spec
def test_grad_equals_autograd_for_a_batch_and_for_each_sample(spec: str) -> None:
    pool, xs = make(spec), batches()
    close(grad(cubes, argnums=1)(pool, xs[0]), gradient(pool, xs[0]))
    close(vmap(grad(lambda x: cubes(pool, x)))(xs), torch.stack([gradient(pool, x) for x in xs]))


@each_spec
def test_autograd_through_vmap_equals_autograd_through_a_loop(spec: str) -> None:
    pool, xs = make(spec), batches().requires_grad_()
    (result,) = torch.autograd.grad(vmap(pool)(xs).pow(3).sum(), xs)
    close(result, torch.stack([gradient(pool, x) for x in xs.detach()]))


@each_spec
def test_jvp_is_the_directional_derivative(spec: str) -> None:
    pool, x, direction = make(spec), features(2, 7), features(2, 7, seed=3)
    result = jvp(pool, (x,), (direction,))
    close(result[0], pool(x))
    tangent = result[1]
    step = 1e-6
    if spec not in APPROXIMATE:
        close(tangent, (pool(x + step * direction) - pool(x - step * direction)) / (2 * step), 1e-5)
    close(tangent, (jacrev(pool)(x) * direction).sum((-3, -2, -1)))
    with forward_ad.dual_level():
        dual = pool(forward_ad.make_dual(x, direction))
        close(forward_ad.unpack_dual(dual).tangent, tangent)


@each_spec
def test_jacobians_of_both_modes_equal_that_of_autograd(spec: str) -> None:
    pool, x = make(spec), features(2, 7)
    expected = torch.autograd.functional.jacobian(pool, x)
    close(jacrev(pool)(x), expected)
    close(jacfwd(pool)(x), expected)


@each_spec
def test_hessians_of_all_modes_equal_that_of_autograd(spec: str) -> None:
    pool, x = make(spec, 3), features(1, 5, 3)

    def loss(x: Tensor) -> Tensor:
        return cubes(pool, x)

    # The second derivative of a signed root is large near 0, and so are its rounding errors.
    expected = torch.autograd.functional.hessian(loss, x)
    bound = 1e-9 * max(1.0, float(expected.abs().max()))
    for hessian in (jacfwd(jacrev(loss)), jacrev(jacfwd(loss)), jacrev(jacrev(loss)), jacfwd(jacfwd(loss))):
        close(hessian(x), expected, bound)


@pytest.mark.parametrize("spec", LEARNABLE)
def test_functional_call_equals_a_pool_with_these_parameters(spec: str) -> None:
    pool, x = make(spec), features(2, 7)
    changed = {name: p.detach() * 1.1 + 0.05 for name, p in pool.named_parameters()}
    other = copy.deepcopy(pool)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(changed[name])
    close(functional_call(pool, changed, x), other(x))
    assert not torch.allclose(functional_call(pool, changed, x), pool(x))

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(pool, parameters, x).pow(3).sum()

    gradients = grad(loss)(changed)
    expected = torch.autograd.grad(cubes(other, x), list(other.parameters()))
    for (name, _), gradient in zip(other.named_parameters(), expected, strict=True):
        close(gradients[name], gradient)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if make(spec).state_dict()])
def test_stacked_pools_equal_a_loop(spec: str) -> None:
    pools, x = [make(spec) for _ in range(3)], features(2, 7)
    with torch.no_grad():
        for i, pool in enumerate(pools):
            for p in pool.parameters():
                p.mul_(1 + 0.1 * i)
    parameters, buffers = stack_module_state(pools)
    skeleton = copy.deepcopy(pools[0]).to("meta")

    def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(skeleton, (parameters, buffers), x)

    close(vmap(run)(parameters, buffers), torch.stack([pool(x) for pool in pools]))
