"""Actors whose actions are kept in [-1, 1]: those of DDPG, TD3 and SAC.

Whatever the bounds of the Box, an action is kept as float32 in [-1, 1] in every dimension:
that is what critics see and what densities refer to. Only `env_action` scales it to the
bounds. Rows of the conditioning "random" act uniformly instead, for the steps before
learning starts, from the same noise: of a standard normal number e, 2 * Phi(e) - 1 =
erf(e / sqrt(2)) is uniform on [-1, 1].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor
from redline.policies.action_heads import GaussianHead
from redline.policies.actor import Actor
from redline.policies.box_bounds import BoxBounds
from redline.policies.distributions import Gaussian, log_tanh_slope
from redline.policies.policy import Conditioning, State

LOG_STD_RANGE = (-20.0, 2.0)
_ROOT_HALF = 0.5**0.5
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class BoxActor(Actor):
    """An actor whose actions lie in [-1, 1]^k, scaled to the bounds of a Box.

    Args:
        observation_space: as for `Actor`.
        action_space: a Box of floats with two finite bounds in each dimension.
        torso: as for `Actor`.
        features: F.
        outputs_per_dimension: of the network.

    Raises:
        SpaceError: if the action space is another, or lacks a bound.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        outputs_per_dimension: int,
    ) -> None:
        bounds = BoxBounds(action_space)
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            num_outputs=outputs_per_dimension * bounds.size,
            noise_head=GaussianHead(bounds.space),
        )
        self.bounds = bounds
        self.action_shape = bounds.shape
        self.action_size = bounds.size
        self.stored_action_space = spaces.Box(-1.0, 1.0, bounds.shape, np.float32)

    def env_action(self, action: Any) -> Any:
        """Scaled from [-1, 1] to the bounds, in the space's dtype, never outside them."""
        return self.bounds.scaled(action)

    def _shaped(self, flat: Tensor) -> Tensor:
        """[N, k] as [N, *shape]."""
        return flat.reshape(-1, *self.action_shape)

    def _uniform(self, obs: NestedTensor, noise: Tensor) -> Tensor:
        return self._shaped(torch.erf(noise * _ROOT_HALF))


class SquashedGaussianActor(BoxActor):
    """a = tanh(u) with u normal, its mean and log standard deviation given by the network.

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    Args:
        observation_space: as for `Actor`.
        action_space: as for `BoxActor`.
        torso: as for `Actor`.
        features: F.
        log_std_range: the log standard deviation of u is cut off at these.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            outputs_per_dimension=2,
        )
        self.log_std_range = log_std_range

    def distribution(self, obs: NestedTensor) -> Gaussian:
        """Of u [N, k], before tanh; with gradient."""
        mean, log_std = self.outputs(obs).chunk(2, dim=1)
        return Gaussian(mean, log_std.clamp(*self.log_std_range), (self.action_size,))

    def sample(self, obs: NestedTensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-density, with gradient through both.

        The density is that of the action in [-1, 1]^k, not of the scaled one:
            log p(a) = log N(u) - sum(log(1 - tanh(u)^2))
        computed from u, so that it is finite at the bounds.

        Args:
            obs: [N, ...] observations.
            noise: [N, k] standard normal.

        Returns:
            [N, *shape] actions and [N] log-densities in nats.
        """
        distribution = self.distribution(obs)
        u = distribution.sample(noise)
        log_prob = squashed_log_prob(noise, distribution.log_std, u)
        return self._shaped(torch.tanh(u)), log_prob

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[Tensor, State]:
        """Tanh of the mean, and {}."""
        mean, _ = self.outputs(obs).chunk(2, dim=1)
        return self._shaped(torch.tanh(mean)), state

    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        return self._shaped(torch.tanh(self.distribution(obs).sample(noise)))


class DeterministicActor(BoxActor):
    """a = tanh(output), with Gaussian noise on it while exploring.

    Lillicrap et al. 2016, arXiv:1509.02971, whose noise was an Ornstein-Uhlenbeck process;
    independent noise as in Fujimoto et al. 2018, arXiv:1802.09477.

    Args:
        observation_space: as for `Actor`.
        action_space: as for `BoxActor`.
        torso: as for `Actor`.
        features: F.
    """

    _conditions = frozenset(("greedy", "random", "noise_scale"))

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            outputs_per_dimension=1,
        )

    def forward(self, obs: NestedTensor) -> Tensor:
        """[N, *shape] the actions without noise, with gradient."""
        return self._shaped(torch.tanh(self.outputs(obs)))

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[Tensor, State]:
        """The action without noise, and {}."""
        return self(obs), state

    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        action = self(obs)
        if "noise_scale" not in conditioning:
            return action
        noise = noise * conditioning["noise_scale"].unsqueeze(-1)
        return (action + self._shaped(noise)).clamp(-1.0, 1.0)


def squashed_log_prob(noise: Tensor, log_std: Tensor, u: Tensor) -> Tensor:
    """[N] log-density of tanh(u) in [-1, 1]^k, where u = mean + std * noise.

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C:
        log p = sum(-noise^2 / 2 - log std - log(2 pi) / 2 - log(1 - tanh(u)^2))

    From the noise, since (u - mean) / std would lose it to rounding where std is small.

    Args:
        noise: [N, k] standard normal.
        log_std: [N, k].
        u: [N, k] before tanh.
    """
    log_normal = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
    return (log_normal - log_tanh_slope(u)).sum(dim=1)
