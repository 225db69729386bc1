"""Noisy linear layers."""

from __future__ import annotations

import math

import pytest
import torch

from redline.errors import ConfigError
from redline.models import NoisyLinear


def test_forward_by_hand() -> None:
    """p = 2, q = 1: y = (mu + sigma f(e_q) f(e_p)) x + mu_b + sigma_b f(e_q).

    With mu = (1, 2), sigma = (0.5, 0.25), f(e_p) = (2, -1), f(e_q) = 3, biases 0.1 and 0.2,
    x = (1, 4): weights 1 + 0.5 * 6 = 4 and 2 - 0.25 * 3 = 1.25, bias 0.1 + 0.6 = 0.7,
    y = 4 + 5 + 0.7 = 9.7. Without noise: 1 + 8 + 0.1 = 9.1.
    """
    layer = NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.weight_std.copy_(torch.tensor([[0.5, 0.25]]))
        layer.bias.fill_(0.1)
        layer.bias_std.fill_(0.2)
    layer.input_noise.copy_(torch.tensor([2.0, -1.0]))
    layer.output_noise.fill_(3.0)
    x = torch.tensor([[1.0, 4.0]])
    assert layer(x).item() == pytest.approx(9.7)
    assert layer(x, noisy=False).item() == pytest.approx(9.1)


def test_initial_values_are_those_of_the_paper() -> None:
    """Means in +-1/sqrt(p), standard deviations 0.5 / sqrt(p): 0.25 for p = 4."""
    layer = NoisyLinear(4, 300)
    assert layer.weight.abs().max() <= 0.5
    assert layer.weight.abs().max() > 0.45
    assert (layer.weight_std == 0.25).all()
    assert (layer.bias_std == 0.25).all()


def test_noise_comes_from_the_generator_and_has_the_right_size() -> None:
    """E f(e)^2 = E |e| = sqrt(2 / pi); the sample is the generator's alone."""
    layer = NoisyLinear(20_000, 3)
    assert not layer.input_noise.any()
    layer.resample(torch.Generator().manual_seed(3))
    first = layer.input_noise.clone()
    assert first.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    assert abs(first.mean().item()) < 0.03
    layer.resample(torch.Generator().manual_seed(4))
    assert not torch.equal(layer.input_noise, first)
    layer.resample(torch.Generator().manual_seed(3))
    assert torch.equal(layer.input_noise, first)


def test_the_sample_is_saved() -> None:
    layer, other = NoisyLinear(3, 2), NoisyLinear(3, 2)
    layer.resample(torch.Generator().manual_seed(0))
    other.load_state_dict(layer.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(layer(x), other(x))


def test_gradient_reaches_the_standard_deviations() -> None:
    layer = NoisyLinear(3, 2)
    layer.resample(torch.Generator().manual_seed(0))
    layer(torch.randn(5, 3)).sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize(("inputs", "outputs", "std"), [(0, 1, 0.5), (1, 0, 0.5), (1, 1, 0.0)])
def test_an_empty_layer_is_refused(inputs: int, outputs: int, std: float) -> None:
    with pytest.raises(ConfigError, match="noisy layer"):
        NoisyLinear(inputs, outputs, std)
