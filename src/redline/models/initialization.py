"""Orthogonal initial weights, the customary start of on-policy networks.

Saxe et al. 2013, arXiv:1312.6120; its use in PPO: Andrychowicz et al. 2020,
arXiv:2006.05990.
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

HIDDEN_GAIN = 2.0**0.5  # of layers followed by a nonlinearity
POLICY_GAIN = 0.01  # a small first policy head: near-uniform actions whatever the observation
VALUE_GAIN = 1.0


def orthogonal_(module: ModuleT, gain: float = HIDDEN_GAIN) -> ModuleT:
    """Make the weights of every linear and convolutional layer in `module` orthogonal, in place.

    A weight [out, in, ...] is seen as a matrix [out, in * ...]; biases become 0. Numbers
    come from torch's global generator.

    Args:
        module: a layer, or any module that holds layers.
        gain: factor on the orthogonal matrix.

    Returns:
        `module` itself.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
