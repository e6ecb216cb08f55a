import pytest
import torch
from torch import nn

from ddptrain.model import BasicNet, ResidualNet, network


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("shape", "kind", "count"),
    [
        ((1, 28, 28), BasicNet, 1_199_882),  # the tutorials' network
        ((1, 8, 8), BasicNet, 53_002),
        ((3, 32, 32), ResidualNet, 696_234),
    ],
)
def test_each_shape_has_its_network(
    shape: tuple[int, int, int], kind: type[nn.Module], count: int
) -> None:
    net = network(shape)
    assert isinstance(net, kind)
    assert parameters(net) == count
    logs = net(torch.zeros(2, *shape))
    assert logs.shape == (2, 10)
    assert torch.allclose(logs.exp().sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("shape", [(1, 28, 27), (1, 5, 5), (2, 28, 28), (3, 64, 64)])
def test_other_shapes_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"images must be 1 x N x N, .*got \("):
        network(shape)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_an_image_is_judged_alone(shape: tuple[int, int, int]) -> None:
    """Otherwise the result would depend on how many ranks share a batch."""
    net = network(shape, dropout=False).double()
    images = torch.randn(4, *shape, dtype=torch.float64)
    assert torch.allclose(net(images)[:2], net(images[:2]), atol=1e-12)
