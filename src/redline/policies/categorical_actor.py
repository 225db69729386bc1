"""The actor of discrete SAC."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor
from redline.errors import SpaceError
from redline.models import POLICY_GAIN, orthogonal_
from redline.policies.action_heads import CategoricalHead
from redline.policies.actor import Actor
from redline.policies.distributions import Categorical
from redline.policies.policy import Conditioning, State


class CategoricalActor(Actor):
    """A choice among n, for discrete SAC.

    Args:
        observation_space: as for `Actor`.
        action_space: a Discrete.
        torso: as for `Actor`.
        features: F.

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
        )
        # Near-uniform at the start: entropy is what the algorithm begins with.
        orthogonal_(self.head, POLICY_GAIN)
        self.num_actions = int(action_space.n)
        self.stored_action_space = action_space

    def distribution(self, obs: NestedTensor) -> Categorical:
        """Over [N] int64; with gradient."""
        return Categorical(self.outputs(obs), self.action_mask(obs))

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[Tensor, State]:
        """The likeliest choice, and {}."""
        return self.distribution(obs).mode(), state

    def _explore(self, obs: NestedTensor, noise: Tensor, conditioning: Conditioning) -> Tensor:
        return self.distribution(obs).sample(noise)

    def _uniform(self, obs: NestedTensor, noise: Tensor) -> Tensor:
        return Categorical(torch.zeros_like(noise), self.action_mask(obs)).sample(noise)
