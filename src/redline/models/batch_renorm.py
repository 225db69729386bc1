"""Batch renormalization, and the networks of CrossQ that are built from it.

Ioffe 2017, arXiv:1702.03275. With the mean m and the deviation s of a batch, and M and S of the
batches before it:

    learning   x' = (x - m) / s * r + d,  r = clip(s / S, 1 / r_max, r_max),
                                          d = clip((m - M) / S, -d_max, d_max)
    acting     x' = (x - M) / S

and then weight * x' + bias. r and d are constants to the gradient. While warming up r = 1 and
d = 0, which is batch normalization.

Which of the two is meant stands in the call, not in the module's mode: `forward` acts and changes
nothing, `learn` counts a batch.
"""

# torch leaves many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from redline.data.ranks import are_several, sum_over_ranks
from redline.errors import ConfigError
from redline.models.ensemble import EnsembleMLP
from redline.models.mlp import make_activation

R_MAX, D_MAX = 3.0, 5.0
EPS = 1e-3


class Renormalization(NamedTuple):
    """How running statistics follow; the values are those of CrossQ's authors.

    Attributes:
        momentum: weight of the past in the running mean and variance, in [0, 1).
        warmup: batches of plain batch normalization at the start.
    """

    momentum: float = 0.99
    warmup: int = 100_000


class BatchRenorm(nn.Module):
    """Batch renormalization of [..., N, F] over the N rows.

    Args:
        features: F.
        members: E of an ensemble, each with statistics of its own; 0: none, inputs are [N, F].
        how: running statistics and warm-up.

    Attributes:
        running_mean: [E, 1, F] M, or [1, F].
        running_var: like it, S^2 without eps.
        batches: [] int64, how many were learned from.

    Raises:
        ConfigError: if a number is out of range.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    def __init__(
        self, features: int, *, members: int = 0, how: Renormalization | None = None
    ) -> None:
        super().__init__()
        self.how = how or Renormalization()
        if not 0.0 <= self.how.momentum < 1.0 or self.how.warmup < 0:
            raise ConfigError(
                f"momentum={self.how.momentum} must be at least 0 and below 1, and "
                f"warmup={self.how.warmup} must not be negative. Give for example 0.99 and 100000."
            )
        shape = (members, 1, features) if members else (1, features)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, members: Tensor | slice | None = None) -> Tensor:
        """Normalize by the running statistics.

        Args:
            x: [..., N, F].
            members: whose inputs they are; None: those of all.
        """
        parts = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, var, weight, bias = (p if members is None else p[members] for p in parts)
        return torch.addcmul(bias, (x - mean) * torch.rsqrt(var + EPS), weight)

    def learn(self, x: Tensor) -> Tensor:
        """Normalize by this batch and take it into the running statistics; with gradient.

        Args:
            x: [..., N, F].
        """
        var, mean = torch.var_mean(x, dim=-2, correction=0, keepdim=True)
        std = (var + EPS).sqrt()
        r, d = self._corrections(mean.detach(), std.detach())
        self._take(mean.detach(), var.detach())
        return torch.addcmul(self.bias, torch.addcmul(d, (x - mean) / std, r), self.weight)

    @torch.no_grad()
    def _corrections(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """R and d, from the running statistics as they were before this batch."""
        running_std = (self.running_var + EPS).sqrt()
        r = (std / running_std).clamp(1.0 / R_MAX, R_MAX)
        d = ((mean - self.running_mean) / running_std).clamp(-D_MAX, D_MAX)
        # On the device: nobody waits for the count.
        warm = self.batches >= self.how.warmup
        return torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)

    @torch.no_grad()
    def _take(self, mean: Tensor, var: Tensor) -> None:
        if are_several():  # else every rank would come to act by statistics of its own
            sums = sum_over_ranks(torch.stack([mean, var, torch.ones_like(mean)]))
            mean, var = sums[0] / sums[2], sums[1] / sums[2]
        share = 1.0 - self.how.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(var, share)
        self.batches.add_(1)


class RenormalizedMLP(nn.Module):
    """Linear layers that each come after batch renormalization, and one more behind the last.

    Its activations are between a linear layer and the renormalization after it. The weights start
    as those of `nn.Linear`.

    Args:
        sizes: widths, the input's first.
        activation: a name in `redline.models.mlp.ACTIVATIONS`.
        how: as for `BatchRenorm`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "relu",
        *,
        how: Renormalization | None = None,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList([BatchRenorm(width, how=how) for width in sizes])
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])
        self.activation = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """[N, sizes[0]] -> [N, sizes[-1]], normalized by the running statistics."""
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = norm(self.activation(layer(x)))
        return x

    def learn(self, x: Tensor) -> Tensor:
        """As `forward`, normalized by this batch, which the running statistics take in."""
        first, *others = self.norms
        x = first.learn(x)  # type: ignore[operator]
        for layer, norm in zip(self.layers, others, strict=True):
            x = norm.learn(self.activation(layer(x)))  # type: ignore[operator]
        return x


class RenormalizedEnsemble(EnsembleMLP):
    """An `EnsembleMLP` with batch renormalization before each linear layer.

    Args:
        num_members: E.
        sizes: widths, the input's first and the output's last.
        activation: between layers, before the renormalization.
        how: as for `BatchRenorm`.
    """

    def __init__(
        self,
        num_members: int,
        sizes: Sequence[int],
        activation: str = "relu",
        *,
        how: Renormalization | None = None,
    ) -> None:
        super().__init__(num_members, sizes, activation)
        self.norms = nn.ModuleList(
            [BatchRenorm(width, members=num_members, how=how) for width in sizes[:-1]]
        )

    def forward(self, inputs: Tensor, members: Tensor | slice | None = None) -> Tensor:
        """As `EnsembleMLP.forward`, normalized by the running statistics."""
        x = inputs
        last = len(self.weights) - 1
        for i, norm in enumerate(self.norms):
            weight, bias = self.weights[i], self.biases[i]
            if members is not None:
                weight, bias = weight[members], bias[members]
            # The statistics [E, 1, F] make [N, F] an input of every member.
            x = torch.baddbmm(bias, norm(x, members), weight)
            x = self.activation(x) if i < last else x
        return x

    def learn(self, inputs: Tensor) -> Tensor:
        """All members, normalized by this batch, which the running statistics take in.

        Args:
            inputs: [N, in], the same for each member.

        Returns:
            [E, N, out].
        """
        x = inputs.expand(self.num_members, *inputs.shape)
        last = len(self.weights) - 1
        for i, norm in enumerate(self.norms):
            x = torch.baddbmm(self.biases[i], norm.learn(x), self.weights[i])  # type: ignore[operator]
            x = self.activation(x) if i < last else x
        return x
