"""The actors of DDPG, TD3 and SAC: networks that act, without a value.

| policy | algorithm | action space | acts |
|---|---|---|---|
| `SquashedGaussianActor` | SAC | Box | tanh(mean + std * noise) |
| `DeterministicActor` | DDPG, TD3 | Box | tanh(output) + noise_scale * noise, within [-1, 1] |
| `CategoricalActor` | discrete SAC | Discrete | argmax(log-probabilities + noise) |

Whatever the bounds of the Box, an action is kept as float32 in [-1, 1] in every dimension:
that is what critics see and what densities refer to. Only `env_action` scales it to the
bounds (`BoxBounds`). Rows of the conditioning "random" act uniformly instead, for the steps
before learning starts, from the same noise: of a standard normal number e, 2 * Phi(e) - 1 =
erf(e / sqrt(2)) is uniform on [-1, 1].
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import Array, NestedTensor, Rollout
from redline.errors import ConfigError, SpaceError
from redline.models import POLICY_GAIN, orthogonal_
from redline.policies.action_heads import ActionHead, CategoricalHead, GaussianHead
from redline.policies.alternatives import algorithms_for
from redline.policies.distributions import (
    HALF_LOG_TWO_PI,
    LARGEST_TANH,
    Categorical,
    Gaussian,
    log_tanh_slope,
)
from redline.policies.export import GreedyPolicy
from redline.policies.masks import MASK_KEY, check_mask_space, without_mask
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.policy import (
    ActionEvaluation,
    ActOutput,
    Conditioning,
    Policy,
    State,
    require_tensors,
)

LOG_STD_RANGE = (-20.0, 2.0)
_ROOT_HALF = 0.5**0.5


class Actor(Policy):
    """A network from observations to what an action is made of; no value, no state.

    Args:
        observation_space: of one environment; the key "action_mask" of a Dict is a mask
            over the choices of the action, not an input of the network.
        action_space: of one environment.
        torso: observations [N, ...] without the mask -> features [N, F].
        features: F.
        num_outputs: of the network for one environment.
        normalizer: of the observations that `act` is given; updates see them normalized already.
            None leaves them as they are.
        noise_head: draws the noise, and says what masks the action space can have.

    Attributes:
        stored_action_space: the space of what `act` gives and replay keeps.

    Raises:
        SpaceError: if the mask does not fit the action space.
    """

    has_value = False
    learns_normalized = True
    is_recurrent = False
    stored_action_space: spaces.Space[Any]
    _conditions: frozenset[str] = frozenset(("greedy", "random"))

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        num_outputs: int,
        noise_head: ActionHead,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.normalizer = normalizer
        self.action_space = action_space
        self.extras_spec = {}
        self.noise_size = noise_head.noise_size
        self.has_mask = check_mask_space(observation_space, action_space, noise_head)
        self.torso = torso
        self.head = nn.Linear(features, num_outputs)
        # Its methods, not the module: a head's own standard deviation would be a parameter
        # of the actor that nothing learns.
        self._draw_noise = noise_head.draw_noise
        self._noise_from_uniform = noise_head.noise_from_uniform

    def initial_state(self, batch_size: int) -> State:
        """{}: there is none."""
        return {}

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """[length, noise_size] float32; drawing 7 rows and then 5 equals drawing 12."""
        return self._draw_noise(rng, length)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """[..., noise_size] on the device of `uniform`; see `Policy.noise_from_uniform`."""
        return self._noise_from_uniform(uniform)

    def outputs(self, obs: NestedTensor) -> Tensor:
        """[N, num_outputs] of the network for normalized observations, with gradient."""
        return self.head(self.torso(without_mask(obs) if self.has_mask else obs))

    def action_mask(self, obs: NestedTensor) -> Tensor | None:
        """[N, n], nonzero where a choice is allowed; None if the observations have none."""
        return obs[MASK_KEY] if self.has_mask else None  # type: ignore[index,return-value]

    @torch.no_grad()
    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """Choose actions for B environments, without gradient.

        Args:
            obs: [B, ...] observations.
            state: {}.
            noise: [B, noise_size]; None acts greedily everywhere.
            conditioning: "greedy" [B] bool, where to take no noise at all; "random" [B]
                bool, where else to act uniformly; a `DeterministicActor` also knows
                "noise_scale" [B], the standard deviation of its noise (without it: 0).

        Raises:
            ConfigError: if `conditioning` holds anything else.
        """
        require_tensors(obs)
        conditioning = conditioning or {}
        if not self._conditions.issuperset(conditioning):
            raise ConfigError(
                f"conditioning {sorted(conditioning)} is not understood by "
                f"{type(self).__name__}, which knows {', '.join(sorted(self._conditions))}, each "
                f"[B]. Leave the others out, or use a policy that knows them."
            )
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        if noise is None:
            return ActOutput(self._greedy(obs), {}, state)
        if "greedy" in conditioning:
            noise = noise.masked_fill(conditioning["greedy"].unsqueeze(-1), 0.0)
        action = self._explore(obs, noise, conditioning)
        if "random" in conditioning:
            rows = conditioning["random"]
            if "greedy" in conditioning:
                rows = rows & ~conditioning["greedy"]
            rows = rows.view(-1, *([1] * (action.dim() - 1)))
            action = torch.where(rows, self._uniform(obs, noise), action)
        return ActOutput(action, {}, state)

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[NestedTensor, State]:
        """The action without noise and nothing else, for exporting.

        Args:
            obs: [N, ...] observations.
            state: {}.

        Returns:
            [N, ...] the action, and {}.
        """
        return self._greedy(obs if self.normalizer is None else self.normalizer(obs)), state

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the running statistics; nothing in eval mode."""
        if self.normalizer is not None:
            self.normalizer.update(rollout["obs"], rollout.valid)

    @abstractmethod
    def _greedy(self, obs: NestedTensor) -> Tensor:
        """[N, ...] the actions without noise, of normalized observations."""

    @abstractmethod
    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        """[B, ...] the actions that the algorithm explores with."""

    @abstractmethod
    def _uniform(self, obs: NestedTensor, noise: Tensor) -> Tensor:
        """[B, ...] uniform actions made from the same noise."""

    def export_module(self) -> GreedyPolicy:
        """A copy in evaluation mode that only acts greedily, for `torch.export` and ONNX."""
        return GreedyPolicy(copy.deepcopy(self).eval())


class CategoricalActor(Actor):
    """A choice among n, for discrete SAC.

    Args:
        observation_space: as for `Actor`.
        action_space: a Discrete.
        torso: as for `Actor`.
        features: F.
        normalizer: as for `Actor`.

    Raises:
        SpaceError: if the action space is another.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise SpaceError(
                f"a CategoricalActor chooses one of n actions, but the action space is "
                f"{action_space}. Use a SquashedGaussianActor or DeterministicActor for a Box."
            )
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            num_outputs=int(action_space.n),
            noise_head=CategoricalHead(action_space),
            normalizer=normalizer,
        )
        # Near-uniform at the start: entropy is what the algorithm begins with.
        orthogonal_(self.head, POLICY_GAIN)
        self.num_actions = int(action_space.n)
        self.stored_action_space = action_space

    def distribution(self, obs: NestedTensor) -> Categorical:
        """Over [N] int64; with gradient."""
        return Categorical(self.outputs(obs), self.action_mask(obs))

    def evaluate_actions(self, obs: NestedTensor, action: Tensor) -> ActionEvaluation:
        """What the network says of actions that others took, with gradient.

        Args:
            obs: [N, ...] observations, not yet normalized.
            action: [N] int64.

        Returns:
            log_prob and entropy [N]; a value there is not, it is 0.
        """
        obs = obs if self.normalizer is None else self.normalizer(obs)
        distribution = self.distribution(obs)
        log_prob = distribution.log_prob(action)
        return ActionEvaluation(log_prob, distribution.entropy(), torch.zeros_like(log_prob), {})

    def _greedy(self, obs: NestedTensor) -> Tensor:
        return self.distribution(obs).mode()

    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        return self.distribution(obs).sample(noise)

    def _uniform(self, obs: NestedTensor, noise: Tensor) -> Tensor:
        return Categorical(torch.zeros_like(noise), self.action_mask(obs)).sample(noise)


class BoxActor(Actor):
    """An actor whose actions lie in [-1, 1]^k, scaled to the bounds of a Box.

    Args:
        observation_space: as for `Actor`.
        action_space: a Box of floats with two finite bounds in each dimension.
        torso: as for `Actor`.
        features: F.
        normalizer: as for `Actor`.
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
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        bounds = BoxBounds(action_space)
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            num_outputs=outputs_per_dimension * bounds.size,
            noise_head=GaussianHead(bounds.space),
            normalizer=normalizer,
        )
        self.bounds = bounds
        self.action_shape = bounds.shape
        self.action_size = bounds.size
        self.stored_action_space = spaces.Box(-1.0, 1.0, bounds.shape, np.float32)

    def env_action(self, action: Any) -> Any:
        """Scaled from [-1, 1] to the bounds, in the space's dtype, never outside them."""
        return self.bounds.scaled(action)

    def stored_action(self, action: Any) -> Any:
        """Scaled from the bounds to [-1, 1], in float32."""
        return self.bounds.unscaled(action)

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
        normalizer: as for `Actor`.
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
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            outputs_per_dimension=2,
            normalizer=normalizer,
        )
        self.log_std_range = log_std_range

    def distribution(self, obs: NestedTensor) -> Gaussian:
        """Of u [N, k], before tanh; with gradient."""
        return self._gaussian(self.outputs(obs))

    def _gaussian(self, outputs: Tensor) -> Gaussian:
        """The distribution of u that outputs [N, 2 k] stand for."""
        mean, log_std = outputs.chunk(2, dim=1)
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
        return self._sampled(self.distribution(obs), noise)

    def _sampled(self, distribution: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` from a distribution of u."""
        # Reparametrized: the gradient goes through the action into mean and deviation.
        u = distribution.sample(noise)
        log_prob = squashed_log_prob(noise, distribution.log_std, u)
        return self._shaped(torch.tanh(u)), log_prob

    def evaluate_actions(self, obs: NestedTensor, action: Tensor) -> ActionEvaluation:
        """What the network says of actions that others took, with gradient.

        Actions at the bounds, which no u reaches, count as `LARGEST_TANH` of the way there.

        Args:
            obs: [N, ...] observations, not yet normalized.
            action: [N, *shape] in [-1, 1].

        Returns:
            log_prob [N], the log-density in [-1, 1]^k; entropy [N] of u, before tanh; a value
            there is not, it is 0.
        """
        obs = obs if self.normalizer is None else self.normalizer(obs)
        distribution = self.distribution(obs)
        u = torch.atanh(action.flatten(1).clamp(-LARGEST_TANH, LARGEST_TANH))
        log_prob = distribution.log_prob(u) - log_tanh_slope(u).sum(dim=1)
        return ActionEvaluation(log_prob, distribution.entropy(), torch.zeros_like(log_prob), {})

    def _greedy(self, obs: NestedTensor) -> Tensor:
        mean, _ = self.outputs(obs).chunk(2, dim=1)
        return self._shaped(torch.tanh(mean))

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
        normalizer: as for `Actor`.
    """

    samples = False
    _conditions = frozenset(("greedy", "random", "noise_scale"))

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            torso=torso,
            features=features,
            outputs_per_dimension=1,
            normalizer=normalizer,
        )

    def forward(self, obs: NestedTensor) -> Tensor:
        """[N, *shape] the actions without noise, with gradient."""
        return self._shaped(torch.tanh(self.outputs(obs)))

    def _greedy(self, obs: NestedTensor) -> Tensor:
        return self(obs)

    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        action = self(obs)
        if "noise_scale" not in conditioning:
            return action
        # A column per environment, so that each can explore by its own amount.
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
    log_normal = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI
    return (log_normal - log_tanh_slope(u)).sum(dim=1)


class BoxBounds(nn.Module):
    """Scales actions dimension by dimension; numpy arrays and tensors alike.

    Args:
        space: a Box of float32 or float64 with two finite bounds in each dimension.

    Attributes:
        space: the same.
        shape: of one action.
        size: k, its dimensions.

    Raises:
        SpaceError: if the space is another, or a dimension lacks a bound.
    """

    _low: Tensor
    _high: Tensor
    _center: Tensor
    _half_width: Tensor

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.space = _checked(space)
        self.shape = tuple(int(n) for n in self.space.shape)
        self.size = int(np.prod(self.shape))
        # Arrays beside the buffers: actions in numpy never touch torch.
        low, high = self.space.low.astype(np.float64), self.space.high.astype(np.float64)
        # Halved before they are added: the distance of two large bounds may be infinite.
        self._center_array, self._half_width_array = high / 2 + low / 2, high / 2 - low / 2
        self._low_array, self._high_array = low, high
        for name, array in (
            ("_low", low),
            ("_high", high),
            ("_center", self._center_array),
            ("_half_width", self._half_width_array),
        ):
            buffer = torch.from_numpy(array.astype(self.space.dtype))
            self.register_buffer(name, buffer, persistent=False)

    def scaled(self, action: Any) -> Any:
        """From [-1, 1] to the bounds, clipped against rounding past them.

        Args:
            action: [..., *shape] numpy array or tensor.

        Returns:
            The same kind, in the space's dtype.
        """
        if isinstance(action, Tensor):
            scaled = self._center + self._half_width * action.to(self._center.dtype)
            return torch.clamp(scaled, self._low, self._high)
        scaled = self._half_width_array * action
        scaled += self._center_array
        np.maximum(scaled, self._low_array, out=scaled)
        np.minimum(scaled, self._high_array, out=scaled)
        # Rounding to the space's dtype cannot pass its bounds, which are of that dtype.
        return scaled.astype(self.space.dtype, copy=False)

    def unscaled(self, action: Any) -> Any:
        """From the bounds to [-1, 1]; 0 in a dimension whose bounds are equal.

        Args:
            action: [..., *shape] numpy array within the bounds.

        Returns:
            [..., *shape] float32.
        """
        width = np.where(self._half_width_array > 0, self._half_width_array, 1.0)
        inside = (np.asarray(action, np.float64) - self._center_array) / width
        return np.clip(inside, -1.0, 1.0).astype(np.float32)


def _checked(space: spaces.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise SpaceError(
            f"actions in [-1, 1] can only be scaled to a Box, but the action space is {space}. "
            f"{algorithms_for(space)}"
        )
    if space.dtype not in (np.float32, np.float64):
        raise SpaceError(
            f"the action space {space} is a Box of {space.dtype}; only Boxes of float32 and "
            f"float64 can be served. Use gymnasium.wrappers.TransformAction for another "
            f"precision, or make whole numbers a MultiDiscrete or Discrete space."
        )
    if not space.shape:
        raise SpaceError(
            f"actions of the space {space} are numbers, not vectors. Declare shape=(1,), or wrap "
            f"the environment by gymnasium.wrappers.TransformAction."
        )
    if int(np.prod(space.shape)) == 0:
        raise SpaceError(f"the action space {space} has no dimensions. Give it at least one.")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise SpaceError(
            f"the action space {space} has an infinite bound, and actions in [-1, 1] cannot be "
            f"scaled to it. Wrap the environment so that all bounds are finite, or use ppo."
        )
    if (space.low > space.high).any():
        raise SpaceError(
            f"the action space {space} has a lower bound above the upper one. Exchange them."
        )
    return space
