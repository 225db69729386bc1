"""MLPs and their initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from redline.errors import ConfigError, UnknownNameError
from redline.models import make_activation, mlp, orthogonal_


def test_two_units_by_hand() -> None:
    """relu(2 * 3 - 1) = 5, relu(-1 * 3 + 0) = 0; output 4 * 5 + 7 * 0 + 0.5 = 20.5."""
    network = mlp((1, 2, 1), "relu", activate_output=False)
    network.load_state_dict(
        {
            "0.weight": torch.tensor([[2.0], [-1.0]]),
            "0.bias": torch.tensor([-1.0, 0.0]),
            "2.weight": torch.tensor([[4.0, 7.0]]),
            "2.bias": torch.tensor([0.5]),
        }
    )
    assert network(torch.tensor([[3.0]])).item() == 20.5


def test_layers_are_in_the_order_asked_for() -> None:
    kinds = [type(layer) for layer in mlp((3, 4, 2), "elu", layer_norm=True)]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ELU] * 2
    kinds = [type(layer) for layer in mlp((3, 4, 2), activate_output=False)]
    assert kinds == [nn.Linear, nn.Tanh, nn.Linear]


def test_gains_of_the_layers() -> None:
    network = mlp((4, 4, 4), gain=2.0, output_gain=0.5)
    for layer, gain in ((network[0], 2.0), (network[2], 0.5)):
        weight = layer.weight.detach()
        torch.testing.assert_close(weight @ weight.t(), gain**2 * torch.eye(4), atol=1e-5, rtol=0)


def test_a_single_size_is_an_empty_network() -> None:
    x = torch.ones(2, 5)
    assert mlp((5,))(x) is x


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sizes=\(3, 0\)"):
        mlp((3, 0))
    with pytest.raises(UnknownNameError, match="Did you mean 'tanh'"):
        make_activation("tanhh")


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
def test_weights_are_orthogonal_times_the_gain(shape: tuple[int, int]) -> None:
    """The smaller of W W^T and W^T W is gain^2 times the identity."""
    layer = orthogonal_(nn.Linear(shape[1], shape[0]), gain=3.0)
    weight = layer.weight.detach()
    gram = weight @ weight.t() if shape[0] <= shape[1] else weight.t() @ weight
    torch.testing.assert_close(gram, 9.0 * torch.eye(min(shape)), atol=1e-5, rtol=0)
    assert not layer.bias.detach().any()


def test_every_layer_inside_a_module_is_covered() -> None:
    network = orthogonal_(nn.Sequential(nn.Conv2d(3, 4, 2, bias=False), nn.Linear(2, 2)), 1.0)
    kernel = network[0].weight.detach().flatten(1)
    torch.testing.assert_close(kernel @ kernel.t(), torch.eye(4), atol=1e-6, rtol=0)
    assert not network[1].bias.detach().any()
