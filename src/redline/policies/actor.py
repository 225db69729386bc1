"""What the actors of DDPG, TD3 and SAC have in common: a network that acts, without a value.

| policy | algorithm | action space | acts |
|---|---|---|---|
| `SquashedGaussianActor` | SAC | Box | tanh(mean + std * noise) |
| `DeterministicActor` | DDPG, TD3 | Box | tanh(output) + noise_scale * noise, within [-1, 1] |
| `CategoricalActor` | discrete SAC | Discrete | argmax(log-probabilities + noise) |
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import Array, NestedTensor
from redline.errors import ConfigError
from redline.policies.action_heads import ActionHead
from redline.policies.export import GreedyPolicy
from redline.policies.masks import MASK_KEY, check_mask_space, without_mask
from redline.policies.policy import ActOutput, Conditioning, Policy, State


class Actor(Policy):
    """A network from observations to what an action is made of; no value, no state.

    Args:
        observation_space: of one environment; the key "action_mask" of a Dict is a mask
            over the choices of the action, not an input of the network.
        action_space: of one environment.
        torso: observations [N, ...] without the mask -> features [N, F].
        features: F.
        num_outputs: of the network for one environment.
        noise_head: draws the noise, and says what masks the action space can have.

    Attributes:
        stored_action_space: the space of what `act` gives and replay keeps.

    Raises:
        SpaceError: if the mask does not fit the action space.
    """

    has_value = False
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
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.extras_spec = {}
        self.noise_size = noise_head.noise_size
        self.has_mask = check_mask_space(observation_space, action_space, noise_head)
        self.torso = torso
        self.head = nn.Linear(features, num_outputs)
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
        """[N, num_outputs] of the network, with gradient."""
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
        conditioning = conditioning or {}
        if not self._conditions.issuperset(conditioning):
            raise ConfigError(
                f"conditioning {sorted(conditioning)} is not understood by "
                f"{type(self).__name__}, which knows {', '.join(sorted(self._conditions))}, each "
                f"[B]. Leave the others out, or use a policy that knows them."
            )
        if noise is None:
            return ActOutput(self.act_greedily(obs, state)[0], {}, state)
        drawn = noise
        if "greedy" in conditioning:
            noise = noise.masked_fill(conditioning["greedy"].unsqueeze(-1), 0.0)
        action = self._explore(obs, noise, conditioning)
        if "random" in conditioning:
            rows = conditioning["random"]
            if "greedy" in conditioning:
                rows = rows & ~conditioning["greedy"]
            rows = rows.view(-1, *([1] * (action.dim() - 1)))
            action = torch.where(rows, self._uniform(obs, drawn), action)
        return ActOutput(action, {}, state)

    @abstractmethod
    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[NestedTensor, State]:
        """The action without noise and nothing else, for exporting.

        Args:
            obs: [N, ...] observations.
            state: {}.

        Returns:
            [N, ...] the action, and {}.
        """

    @abstractmethod
    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        """[B, ...] the actions that the algorithm explores with."""

    @abstractmethod
    def _uniform(self, obs: NestedTensor, noise: Tensor) -> Tensor:
        """[B, ...] uniform actions made from the same noise."""

    def export_module(self) -> GreedyPolicy:
        """A copy in evaluation mode that only acts greedily, for `torch.export` and ONNX."""
        return GreedyPolicy(copy.deepcopy(self).eval())
