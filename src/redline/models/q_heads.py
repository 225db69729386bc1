"""Heads that value each of A actions, from features [N, F].

| head | outputs [N, A, Z] | action value |
|---|---|---|
| `ScalarHead` | Z = 1 value | that value |
| `CategoricalValueHead` | Z atoms' logits (C51) | sum_i softmax(logits)_i z_i |
| `QuantileHead` | Z quantiles (QR-DQN) | their mean |
| `ImplicitQuantileHead` | quantiles at Z given fractions (IQN) | their mean |

Each may be dueling and noisy. A dueling head (Wang et al. 2016, eq. 9) has a stream for the
state value V and one for the advantages A, and the mean over ACTIONS is subtracted, for
each Z on its own:

    Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from redline.models.noisy import NoisyLinear

_EMBEDDING_SIZE = 64  # cosines of the implicit quantile network


class Stream(nn.Module):
    """Linear layers with ReLU between them, noisy or not.

    Args:
        sizes: widths, the input's first.
        noisy_std: sigma_0 of noisy layers; None: plain ones.
    """

    def __init__(self, sizes: Sequence[int], noisy_std: float | None) -> None:
        super().__init__()
        self.noisy = noisy_std is not None
        self.layers = nn.ModuleList(
            nn.Linear(*pair) if noisy_std is None else NoisyLinear(*pair, noisy_std)
            for pair in pairwise(sizes)
        )

    def forward(self, x: Tensor, noisy: bool) -> Tensor:
        """[..., sizes[0]] -> [..., sizes[-1]]; with noise if `noisy` and there is any."""
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = x.relu()
            x = layer(x, noisy) if self.noisy else layer(x)
        return x


class QHead(nn.Module, ABC):
    """Values of A actions.

    Args:
        features: F.
        num_actions: A.
        num_values: Z, outputs of the last layer per action.
        dueling: whether there are two streams.
        hidden_sizes: layers of each stream before the last.
        noisy_std: sigma_0 of noisy layers; None: plain ones.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        *,
        num_values: int = 1,
        dueling: bool = False,
        hidden_sizes: Sequence[int] = (),
        noisy_std: float | None = None,
    ) -> None:
        super().__init__()
        self.num_actions, self.num_values = num_actions, num_values
        sizes = (features, *hidden_sizes)
        self.advantage = Stream((*sizes, num_actions * num_values), noisy_std)
        self.state_value = Stream((*sizes, num_values), noisy_std) if dueling else None

    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise for all noisy layers."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.resample(generator)

    @property
    def is_noisy(self) -> bool:
        """Whether there are noisy layers."""
        return self.advantage.noisy

    def forward(self, features: Tensor, noisy: bool = True) -> Tensor:
        """[N, F] -> outputs [N, A, Z], with the present noise or with the mean weights."""
        return self._streams(features, noisy)

    def _streams(self, features: Tensor, noisy: bool) -> Tensor:
        """[..., F] -> [..., A, Z]."""
        advantage = self.advantage(features, noisy)
        advantage = advantage.unflatten(-1, (self.num_actions, self.num_values))
        if self.state_value is None:
            return advantage
        # Without the subtraction V and A are not determined: a constant could move between.
        value = self.state_value(features, noisy).unsqueeze(-2)
        return value + advantage - advantage.mean(-2, keepdim=True)

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Outputs [..., Z] -> action values [...]."""


class ScalarHead(QHead):
    """One value per action."""

    def mean(self, outputs: Tensor) -> Tensor:
        """See `QHead`."""
        return outputs.squeeze(-1)


class CategoricalValueHead(QHead):
    """Logits of a distribution over fixed atoms: C51, Bellemare et al. 2017, arXiv:1707.06887.

    Args:
        features: F.
        num_actions: A.
        num_atoms: Z.
        v_min: value of the first atom.
        v_max: value of the last one.
        dueling: see `QHead`.
        hidden_sizes: see `QHead`.
        noisy_std: see `QHead`.
    """

    atoms: Tensor

    def __init__(
        self,
        features: int,
        num_actions: int,
        *,
        num_atoms: int,
        v_min: float,
        v_max: float,
        dueling: bool = False,
        hidden_sizes: Sequence[int] = (),
        noisy_std: float | None = None,
    ) -> None:
        super().__init__(
            features,
            num_actions,
            num_values=num_atoms,
            dueling=dueling,
            hidden_sizes=hidden_sizes,
            noisy_std=noisy_std,
        )
        self.register_buffer("atoms", torch.linspace(v_min, v_max, num_atoms), persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        """See `QHead`."""
        return outputs.softmax(-1) @ self.atoms


class QuantileHead(QHead):
    """Quantiles at the midpoints (2 i + 1) / 2 Z: QR-DQN, Dabney et al. 2018, arXiv:1710.10044."""

    def mean(self, outputs: Tensor) -> Tensor:
        """See `QHead`."""
        return outputs.mean(-1)


class ImplicitQuantileHead(QHead):
    """Quantiles at any fractions: IQN, Dabney et al. 2018, arXiv:1806.06923, eq. 4.

    The features are multiplied by phi(tau) = relu(linear(cos(pi i tau), i = 0 .. 63)). (Of
    the network after the multiplication there is only what `hidden_sizes` gives.)

    Args:
        features: F.
        num_actions: A.
        num_acting_fractions: K, evenly spaced fractions when none are given.
        dueling: see `QHead`.
        hidden_sizes: see `QHead`.
        noisy_std: see `QHead`; the embedding is plain.
    """

    acting_fractions: Tensor
    frequencies: Tensor

    def __init__(
        self,
        features: int,
        num_actions: int,
        *,
        num_acting_fractions: int,
        dueling: bool = False,
        hidden_sizes: Sequence[int] = (),
        noisy_std: float | None = None,
    ) -> None:
        super().__init__(
            features, num_actions, dueling=dueling, hidden_sizes=hidden_sizes, noisy_std=noisy_std
        )
        self.embedding = nn.Linear(_EMBEDDING_SIZE, features)
        # An embedding of mean 1 would be the neutral one; that of cosines alone is near 0.
        nn.init.ones_(self.embedding.bias)
        self.register_buffer(
            "frequencies", math.pi * torch.arange(_EMBEDDING_SIZE), persistent=False
        )
        self.register_buffer("acting_fractions", midpoints(num_acting_fractions), persistent=False)

    def forward(
        self, features: Tensor, noisy: bool = True, fractions: Tensor | None = None
    ) -> Tensor:
        """[N, F] -> quantiles [N, A, Z].

        Args:
            features: [N, F].
            noisy: whether noisy layers use their present noise.
            fractions: [N, Z] in (0, 1); None: the K evenly spaced ones.
        """
        if fractions is None:
            fractions = self.acting_fractions.expand(features.shape[0], -1)
        cosines = (fractions.unsqueeze(-1) * self.frequencies).cos()
        embedded = features.unsqueeze(1) * self.embedding(cosines).relu()  # [N, Z, F]
        return self._streams(embedded, noisy).squeeze(-1).transpose(1, 2)

    def mean(self, outputs: Tensor) -> Tensor:
        """See `QHead`."""
        return outputs.mean(-1)


def midpoints(count: int) -> Tensor:
    """[count] fractions (2 i + 1) / (2 count): the middles of equal parts of [0, 1]."""
    return (torch.arange(count) + 0.5) / count
