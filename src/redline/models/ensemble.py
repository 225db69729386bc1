"""MLPs of the same shape computed as one: the critics of off-policy algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from redline.errors import ConfigError
from redline.models.mlp import make_activation


class EnsembleMLP(nn.Module):
    """E independent MLPs, one batched matrix product per layer.

    Between layers, in this order: dropout, layer normalization, activation (Hiraoka et al.
    2022, arXiv:2110.02034, figure 2). The initial weights are those of `nn.Linear`: uniform
    within 1 / sqrt(fan in), weights and biases, drawn for each member from torch's global
    generator.

    Args:
        num_members: E, at least 1.
        sizes: widths, the input's first and the output's last; at least these two.
        activation: between layers; a name in `redline.models.mlp.ACTIVATIONS`.
        layer_norm: whether each activation is preceded by layer normalization.
        dropout: share of each hidden layer's outputs that is dropped in training mode.

    Raises:
        ConfigError: if a number is out of range.
        UnknownNameError: if the activation is not known.
    """

    def __init__(
        self,
        num_members: int,
        sizes: Sequence[int],
        activation: str = "relu",
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check(num_members, sizes, dropout)
        self.num_members = num_members
        self.dropout = dropout
        self.activation = make_activation(activation)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.norm_weights = nn.ParameterList()
        self.norm_biases = nn.ParameterList()
        # All of them before the first is filled: sizes that do not fit are then refused at once.
        for fan_in, fan_out in pairwise(sizes):
            self.weights.append(nn.Parameter(torch.empty(num_members, fan_in, fan_out)))
            self.biases.append(nn.Parameter(torch.empty(num_members, 1, fan_out)))
        for weight, bias in zip(self.weights, self.biases, strict=True):
            # `nn.Linear`'s own start, so that an ensemble learns as separate networks would.
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        for width in sizes[1:-1] if layer_norm else ():
            self.norm_weights.append(nn.Parameter(torch.ones(num_members, 1, width)))
            self.norm_biases.append(nn.Parameter(torch.zeros(num_members, 1, width)))

    def forward(self, inputs: Tensor, members: Tensor | slice | None = None) -> Tensor:
        """Run some or all of the members.

        Args:
            inputs: [N, in], the same for each member, or [E, N, in].
            members: which of them, as a slice or [M] int64; None runs all E. With it,
                [M, N, in] is what inputs of three dimensions must be.

        Returns:
            [E, N, out], or [M, N, out].
        """
        x = inputs
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if members is not None:
                weight, bias = weight[members], bias[members]
            if x.dim() == 2:  # the same input for every member, without copying it
                x = x.expand(weight.shape[0], *x.shape)
            x = torch.baddbmm(bias, x, weight)
            if layer < last:
                x = self.activation(self._between(x, layer, members))
        return x

    def _between(self, x: Tensor, layer: int, members: Tensor | slice | None) -> Tensor:
        """Dropout and layer normalization, where there are any."""
        if self.dropout > 0.0:
            x = functional.dropout(x, self.dropout, self.training)
        if len(self.norm_weights):
            scale, shift = self.norm_weights[layer], self.norm_biases[layer]
            if members is not None:
                scale, shift = scale[members], shift[members]
            x = torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:]), scale)
        return x


def _check(num_members: int, sizes: Sequence[int], dropout: float) -> None:
    if num_members < 1:
        raise ConfigError(f"num_members={num_members} is no ensemble. Give 1 or more.")
    if len(sizes) < 2 or min(sizes) < 1:
        raise ConfigError(
            f"sizes={tuple(sizes)!r} is no network: widths are those of the input, the hidden "
            f"layers and the output, each at least 1. Give for example (4, 64, 1)."
        )
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"dropout={dropout} must be at least 0 and below 1.")
