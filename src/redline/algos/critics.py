"""Critics of DDPG, TD3 and SAC: an ensemble of Q-functions, its loss and its targets."""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor
from redline.errors import ConfigError
from redline.models import EnsembleMLP
from redline.policies.make import ModuleFactory, make_torso
from redline.policies.masks import MASK_KEY, network_space, without_mask

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Of the actor and of each critic, which share nothing.

    Attributes:
        hidden_sizes: widths of the dense layers. Those of an actor that sees only an image
            are its convolutional network's own; critics have these behind it all the same.
        activation: between them.
        encoder: as for `policies.make_policy`.
        normalize_obs: whether the policy normalizes observations; the critics see what it sees.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    encoder: str | ModuleFactory = "auto"
    normalize_obs: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As keyword arguments of `policies.make_actor`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def network_settings(
    algorithm: str,
    *,
    hidden_sizes: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: str | ModuleFactory = "auto",
    core: str = "none",
    core_size: int = 128,
    core_window: int = 32,
    core_layers: int = 1,
    core_heads: int = 4,
    shared_encoder: bool | None = None,
    normalize_obs: bool = False,
    distribution: str = "auto",
    initial_log_std: float = 0.0,
) -> NetworkSettings:
    """What applies of a run's policy settings; a core's own mean nothing without one.

    Args:
        algorithm: whose name the errors give.
        hidden_sizes: widths of the dense layers.
        activation: between them.
        encoder: as for `policies.make_policy`.
        core: only "none".
        core_size: not looked at.
        core_window: not looked at.
        core_layers: not looked at.
        core_heads: not looked at.
        shared_encoder: None or False.
        normalize_obs: whether the policy normalizes observations.
        distribution: "auto" or "squashed", which are the same here.
        initial_log_std: only 0.

    Raises:
        ConfigError: if a setting is given that the algorithm does not have.
    """
    reasons = {
        f"core={core!r}": (core != "none")
        and "it learns from single transitions, which hold no recurrent state. Use core='none', "
        "or ppo for a recurrent policy.",
        "shared_encoder=True": shared_encoder is True
        and "actor and critics have encoders of their own. Leave it out.",
        f"distribution={distribution!r}": distribution not in ("auto", "squashed")
        and "its Box actions are always squashed into their bounds by tanh. Use "
        "distribution='auto'.",
        f"initial_log_std={initial_log_std}": initial_log_std != 0.0
        and "no parameter of its own is its actor's standard deviation. Leave it out.",
    }
    for setting, reason in reasons.items():
        if reason:
            raise ConfigError(f"{setting} is not for {algorithm}: {reason}")
    return NetworkSettings(
        hidden_sizes=tuple(hidden_sizes),
        activation=activation,
        encoder=encoder,
        normalize_obs=normalize_obs,
    )


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
    hidden_sizes: Sequence[int] | None = None,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> Critic:
    """A critic, its weights drawn from torch's global generator.

    Args:
        observation_space: of one environment, possibly with an action mask.
        network: of the actor; the critic has its encoder and activation.
        num_critics: E.
        action_size: k; 0 where the critic values choices.
        num_choices: n; 1 where the action is an input.
        hidden_sizes: widths of the ensemble's hidden layers; None: those of the actor.
        layer_norm: as for `EnsembleMLP`.
        dropout: as for `EnsembleMLP`.
    """
    seen = network_space(observation_space)
    encoder, features = make_torso(seen, network.encoder, (), network.activation)
    widths = network.hidden_sizes if hidden_sizes is None else hidden_sizes
    ensemble = EnsembleMLP(
        num_critics,
        (features + action_size, *widths, num_choices),
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
