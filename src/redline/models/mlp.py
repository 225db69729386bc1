"""Multi-layer perceptrons (MLPs), and the orthogonal initial weights of on-policy networks.

Orthogonal weights: Saxe et al. 2013, arXiv:1312.6120; their use in PPO: Andrychowicz et al.
2020, arXiv:2006.05990.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TypeVar

from torch import nn

from redline.errors import ConfigError, UnknownNameError

ModuleT = TypeVar("ModuleT", bound=nn.Module)

HIDDEN_GAIN = 2.0**0.5  # of layers followed by a nonlinearity
POLICY_GAIN = 0.01  # a small first policy head: near-uniform actions whatever the observation
VALUE_GAIN = 1.0

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def make_activation(name: str) -> nn.Module:
    """The activation called `name`.

    Raises:
        UnknownNameError: if there is none of that name.
    """
    if name not in ACTIVATIONS:
        close = get_close_matches(name, ACTIVATIONS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"activation={name!r} is not known.{hint} Use one of {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]()


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


def mlp(
    sizes: Sequence[int],
    activation: str = "tanh",
    *,
    activate_output: bool = True,
    gain: float = HIDDEN_GAIN,
    output_gain: float | None = None,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Linear layers with an activation between them, initialized orthogonally.

    Args:
        sizes: widths, the input's first; a single number gives an empty network.
        activation: a name in `ACTIVATIONS`.
        activate_output: whether the last layer is followed by an activation too.
        gain: of the initial weights.
        output_gain: of the last layer's; None means `gain`.
        layer_norm: whether each activation is preceded by layer normalization.

    Returns:
        A network [N, sizes[0]] -> [N, sizes[-1]].

    Raises:
        ConfigError: if `sizes` is empty or holds a number below 1.
        UnknownNameError: if the activation is not known.
    """
    if not sizes or min(sizes) < 1:
        raise ConfigError(
            f"sizes={tuple(sizes)!r} is no network: widths begin with the input's and are at "
            f"least 1. Give for example (4, 64, 64)."
        )
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        # A head has a gain of its own: how far its first outputs lie apart matters.
        layer_gain = gain if i < last or output_gain is None else output_gain
        layers.append(orthogonal_(nn.Linear(fan_in, fan_out), layer_gain))
        if i < last or activate_output:
            if layer_norm:
                layers.append(nn.LayerNorm(fan_out))
            layers.append(make_activation(activation))
    return nn.Sequential(*layers)
