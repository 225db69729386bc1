"""The ensemble against separate perceptrons of `nn.Linear`, which are the reference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from redline.errors import ConfigError, UnknownNameError
from redline.models import EnsembleMLP

SIZES = (5, 8, 6, 2)


def separate(ensemble: EnsembleMLP, member: int, layer_norm: bool) -> nn.Sequential:
    """One member as plain layers with copied weights."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(SIZES)):
        linear = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            linear.weight.copy_(ensemble.weights[i][member].T)
            linear.bias.copy_(ensemble.biases[i][member, 0])
        layers.append(linear)
        if i < len(SIZES) - 2:
            if layer_norm:
                norm = nn.LayerNorm(fan_out)
                with torch.no_grad():
                    norm.weight.copy_(ensemble.norm_weights[i][member, 0])
                    norm.bias.copy_(ensemble.norm_biases[i][member, 0])
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def filled(num_members: int, layer_norm: bool) -> EnsembleMLP:
    """An ensemble whose normalization is not the identity at the start."""
    torch.manual_seed(0)
    ensemble = EnsembleMLP(num_members, SIZES, layer_norm=layer_norm)
    with torch.no_grad():
        for part in (*ensemble.norm_weights, *ensemble.norm_biases):
            part.uniform_(0.5, 1.5)
    return ensemble


@pytest.mark.parametrize("num_members", [1, 2, 10])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_equals_separate_networks_in_values_and_gradients(
    num_members: int, layer_norm: bool
) -> None:
    ensemble = filled(num_members, layer_norm)
    networks = [separate(ensemble, i, layer_norm) for i in range(num_members)]
    inputs = torch.randn(7, 5, requires_grad=True)
    copied = inputs.detach().clone().requires_grad_()
    target = torch.randn(num_members, 7, 2)
    got = ensemble(inputs)
    wanted = torch.stack([network(copied) for network in networks])
    assert got.shape == (num_members, 7, 2)
    torch.testing.assert_close(got, wanted)
    (got - target).square().mean().backward()
    (wanted - target).square().mean().backward()
    torch.testing.assert_close(inputs.grad, copied.grad)
    for i, network in enumerate(networks):
        linears = [layer for layer in network if isinstance(layer, nn.Linear)]
        for layer, linear in enumerate(linears):
            weight, bias = ensemble.weights[layer].grad, ensemble.biases[layer].grad
            assert isinstance(weight, Tensor)
            assert isinstance(bias, Tensor)
            torch.testing.assert_close(weight[i].T, linear.weight.grad)
            torch.testing.assert_close(bias[i, 0], linear.bias.grad)
        norms = [layer for layer in network if isinstance(layer, nn.LayerNorm)]
        for layer, norm in enumerate(norms):
            scale = ensemble.norm_weights[layer].grad
            assert isinstance(scale, Tensor)
            torch.testing.assert_close(scale[i, 0], norm.weight.grad)


def test_inputs_of_their_own_for_each_member() -> None:
    ensemble = filled(3, layer_norm=False)
    inputs = torch.randn(3, 7, 5)
    got = ensemble(inputs)
    for i in range(3):
        torch.testing.assert_close(got[i], separate(ensemble, i, False)(inputs[i]))


@pytest.mark.parametrize("members", [torch.tensor([4, 1]), slice(1, 3)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_subset_gives_the_same_as_those_rows_of_all(
    members: Tensor | slice, layer_norm: bool
) -> None:
    ensemble = filled(5, layer_norm)
    inputs = torch.randn(7, 5)
    torch.testing.assert_close(ensemble(inputs, members), ensemble(inputs)[members])


def test_members_start_as_linear_layers_do_and_differ() -> None:
    """`nn.Linear` draws weights and biases uniformly within 1 / sqrt(fan in) = 1 / 10.

    The standard deviation of that law is 0.1 / sqrt(3) = 0.05774; with 2 * 10,000 weights
    the estimate's own standard deviation is about 0.0002.
    """
    torch.manual_seed(1)
    ensemble = EnsembleMLP(2, (100, 100, 1))
    weight, bias = ensemble.weights[0].detach(), ensemble.biases[0].detach()
    for part in (weight, bias):
        assert part.abs().max() <= 0.1
        assert part.abs().max() > 0.09
    assert weight.std().item() == pytest.approx(0.05774, abs=0.001)
    assert weight.mean().item() == pytest.approx(0.0, abs=0.002)
    assert not torch.equal(weight[0], weight[1])
    correlation = torch.corrcoef(weight.flatten(1))[0, 1]
    assert abs(correlation.item()) < 0.05


def test_all_weights_are_there_before_the_first_is_drawn() -> None:
    """So sizes that do not fit are refused before minutes go into random numbers."""
    made: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Noted():
        EnsembleMLP(2, [3, 4, 1])
    made = [name for name in made if name in ("empty", "uniform_")]
    assert made == ["empty"] * 4 + ["uniform_"] * 4


def test_dropout_acts_in_training_and_not_in_evaluation() -> None:
    torch.manual_seed(2)
    ensemble = EnsembleMLP(2, (5, 64, 1), dropout=0.5)
    inputs = torch.randn(7, 5)
    assert not torch.equal(ensemble(inputs), ensemble(inputs))
    ensemble.eval()
    assert torch.equal(ensemble(inputs), ensemble(inputs))


def test_dropout_keeps_the_expected_value_of_each_hidden_layer() -> None:
    """With one linear path the mean over many draws is the output without dropout."""
    torch.manual_seed(3)
    ensemble = EnsembleMLP(1, (1, 4000, 1), dropout=0.25)
    with torch.no_grad():
        ensemble.weights[0].fill_(1.0)
        ensemble.weights[1].fill_(1.0 / 4000)
        for bias in ensemble.biases:
            bias.zero_()
    output = ensemble(torch.ones(50, 1))
    assert output.mean().item() == pytest.approx(1.0, abs=0.01)
    assert ensemble.eval()(torch.ones(1, 1)).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("num_members", "sizes", "dropout", "said"),
    [
        (0, (3, 1), 0.0, "num_members=0"),
        (2, (3,), 0.0, r"sizes=\(3,\)"),
        (2, (3, 0, 1), 0.0, r"sizes=\(3, 0, 1\)"),
        (2, (3, 1), 1.0, r"dropout=1\.0"),
    ],
)
def test_bad_numbers_are_refused(
    num_members: int, sizes: tuple[int, ...], dropout: float, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        EnsembleMLP(num_members, sizes, dropout=dropout)


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="relu"):
        EnsembleMLP(2, (3, 4, 1), "rely")
