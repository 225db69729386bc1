"""Critics of DDPG, TD3 and SAC: an ensemble of Q-functions, its loss and its targets."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.algos.networks import NetworkSettings
from redline.data import NestedTensor
from redline.models import EnsembleMLP
from redline.policies.make import make_torso
from redline.policies.masks import MASK_KEY, network_space, without_mask

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Critic(nn.Module):
    """E Q-functions: one encoder, then an ensemble on [features, action].

    Args:
        encoder: observations [N, ...] without an action mask -> features [N, F].
        ensemble: [N, F + k] -> [E, N, 1] for actions of k numbers, or [N, F] -> [E, N, n],
            the values of n choices.
        has_mask: whether the observations hold an action mask, which is no input.
    """

    def __init__(
        self, encoder: nn.Module, ensemble: EnsembleMLP, *, has_mask: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.ensemble = ensemble
        self.has_mask = has_mask

    def encode(self, obs: NestedTensor) -> Tensor:
        """[N, F] features of the observations."""
        return self.encoder(without_mask(obs) if self.has_mask else obs)

    def values(
        self, features: Tensor, action: Tensor, members: Tensor | slice | None = None
    ) -> Tensor:
        """Q-values of actions.

        Args:
            features: [N, F].
            action: [N, ...] of k numbers in [-1, 1].
            members: which of the Q-functions; None: all.

        Returns:
            [E, N], or [M, N] of M members.
        """
        inputs = torch.cat([features, action.flatten(1)], dim=1)
        return self.ensemble(inputs, members).squeeze(-1)

    def forward(
        self, obs: NestedTensor, action: Tensor, members: Tensor | slice | None = None
    ) -> Tensor:
        """`values` of the observations' features."""
        return self.values(self.encode(obs), action, members)

    def choice_values(self, obs: NestedTensor, members: Tensor | slice | None = None) -> Tensor:
        """[E, N, n] the values of all n choices."""
        return self.ensemble(self.encode(obs), members)


def make_critic(
    observation_space: spaces.Space[Any],
    network: NetworkSettings,
    *,
    num_critics: int,
    action_size: int = 0,
    num_choices: int = 1,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> Critic:
    """A critic, its weights drawn from torch's global generator.

    Args:
        observation_space: of one environment, possibly with an action mask.
        network: the encoder, and the widths of the ensemble's hidden layers.
        num_critics: E.
        action_size: k; 0 where the critic values choices.
        num_choices: n; 1 where the action is an input.
        layer_norm: as for `EnsembleMLP`.
        dropout: as for `EnsembleMLP`.
    """
    seen = network_space(observation_space)
    encoder, features = make_torso(seen, network.encoder, (), network.activation)
    ensemble = EnsembleMLP(
        num_critics,
        (features + action_size, *network.hidden_sizes, num_choices),
        network.activation,
        layer_norm=layer_norm,
        dropout=dropout,
    )
    has_mask = isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces
    return Critic(encoder, ensemble, has_mask=has_mask)


def bootstrapped(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """[N] target: y = R + discount * V(s').

    Sutton and Barto 2018, eq. 7.1, with R the discounted sum of a window's n rewards and
    discount = gamma^n, or 0 if the window ended in a termination. One that ended in a
    truncation is bootstrapped from the true last observation like any other.

    Args:
        reward: [N] R.
        discount: [N] in [0, 1].
        next_value: [N] V(s').
    """
    return torch.addcmul(reward, discount, next_value)


def critic_loss(values: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error, summed over the critics, weighted, averaged over the batch.

    Haarnoja et al. 2018, arXiv:1812.05905, eq. 5; weights as in Schaul et al. 2016,
    arXiv:1511.05952, section 3.4:
        loss = mean_N(w * sum_E (Q - y)^2 / 2)

    Args:
        values: [E, N] Q(s, a); carries gradient.
        target: [N] y; a constant here.
        weight: [N] importance weights w.

    Returns:
        The loss [], and [N] the mean over the critics of |Q - y|, for priorities.
    """
    error = values - target
    loss = 0.5 * (weight * error.square().sum(dim=0)).mean()
    return loss, error.detach().abs().mean(dim=0)


def frozen_copy(module: ModuleT) -> ModuleT:
    """A target network: equal at the start, and never differentiated."""
    return copy.deepcopy(module).requires_grad_(False)
