import pytest
import torch
from torch import Tensor, nn

from polycov.models.backbones import Backbone
from polycov.models.backends.fold import fold_batch_norm

# All BatchNorms that follow a convolution, counted in the networks themselves.
NETWORKS = ["test_resnet", "test_efficientnet", "test_mambaout", "test_vit", "mobilenetv3_small_050", "regnetx_002"]


def used_network(name: str) -> Backbone:
    """A network with statistics that are not those of a new one."""
    generator = torch.Generator().manual_seed(0)
    backbone = Backbone(name, weights="none", size=160 if name == "test_vit" else 64).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in ((module.running_mean, -1), (module.running_var, 0.5), (module.weight, 0.5)):
                assert tensor is not None
                tensor.data.copy_(low + torch.rand(tensor.shape, generator=generator))
    return backbone


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_computes_the_same(name: str) -> None:
    backbone = used_network(name)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    x = torch.randn(3, 3, backbone.size, backbone.size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        folded, count = fold_batch_norm(backbone, x[:1])
        expected = backbone(x)
        torch.testing.assert_close(folded(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())
    assert count == norms  # in these networks each follows a convolution
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


class Repeated(nn.Module):
    """A convolution that runs twice: its two outputs are normalised differently."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))


class Standardised(nn.Conv2d):
    """A convolution that does not use its weights as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight / self.weight.norm(), self.bias)


@pytest.mark.parametrize("network", [Repeated(), nn.Sequential(Standardised(3, 4, 3), nn.BatchNorm2d(4))])
def test_what_cannot_be_folded_is_left_as_it_is(network: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        folded, count = fold_batch_norm(network.eval(), x[:1])
        assert count == 0
        torch.testing.assert_close(folded(x), network(x), rtol=0, atol=0)
