"""A policy that holds another one and, unless it says otherwise, does as that one does."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from redline.data import Array, Rollout
from redline.policies.export import GreedyPolicy
from redline.policies.policy import ActionEvaluation, Policy, State


class PolicyWrapper(Policy):
    """Passes everything but `act` and `value` on.

    Args:
        policy: the one inside; kept, not copied.

    Attributes:
        policy: as given.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.noise_size, self.is_recurrent = policy.noise_size, policy.is_recurrent
        self.extras_spec, self.has_value = policy.extras_spec, policy.has_value
        self.action_space = policy.action_space
        self.conditioning_names = policy.conditioning_names

    def initial_state(self, batch_size: int) -> State:
        """That of the policy inside."""
        return self.policy.initial_state(batch_size)

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """That of the policy inside."""
        return self.policy.draw_noise(rng, length)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """That of the policy inside."""
        return self.policy.noise_from_uniform(uniform)

    def env_action(self, action: Any) -> Any:
        """That of the policy inside."""
        return self.policy.env_action(action)

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """As the policy inside replays."""
        return self.policy.evaluate_rollout(rollout)

    def export_module(self) -> GreedyPolicy:
        """That of the policy inside."""
        return self.policy.export_module()

    def evaluation_conditioning(self, num_envs: int) -> dict[str, Tensor]:
        """That of the policy inside."""
        return self.policy.evaluation_conditioning(num_envs)

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the statistics of the policy inside."""
        self.policy.update_normalizer(rollout)
