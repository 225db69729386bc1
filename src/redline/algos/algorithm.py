"""What the training loop asks of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from redline.data import Rollout, SequenceBatch, masked_mean_std
from redline.policies.policy import Policy


class OnPolicyAlgorithm(Protocol):
    """An algorithm that learns from each rollout once.

    Attributes:
        policy: the learner's own copy of the weights.
    """

    policy: Policy

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Improve the policy from one rollout; metrics stay tensors [] on its device."""
        ...

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take the present values of what the schedules govern, before an update."""
        ...

    def optimizer_steps(self) -> int:
        """Optimiser steps taken so far. Waits for the device: for the logger only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, the policy's parameters included."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        ...


class OffPolicyAlgorithm(Protocol):
    """An algorithm that learns from batches of replay.

    Attributes:
        policy: what acts; its parameters are a part of what the algorithm learns.
        metric_names: what `update` returns beside "priority".
    """

    policy: Policy
    metric_names: tuple[str, ...]

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Per-environment inputs of the policy for the next collection, name -> [B].

        Args:
            env_steps: taken so far, over all environments.
            total_env_steps: length of the run.
            num_envs: B.
        """
        ...

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """[T, B] priorities of new transitions; None: the highest that replay has seen."""
        ...

    def update(self, batch: TensorDict | SequenceBatch) -> dict[str, Any]:
        """Improve from one batch; never waits for the device.

        Returns:
            name -> metrics, each a tensor [], or a number where nothing has to be waited for;
            and "priority" [N], a tensor, the new priorities of the batch.
        """
        ...

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take the present values of what the schedules govern, before an update."""
        ...

    def optimizer_steps(self) -> int:
        """Optimiser steps taken so far. Waits for the device: for the logger only."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on; "policy" holds the policy's parameters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        ...


def normalized(advantage: Tensor, valid: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid rows."""
    mean, std = masked_mean_std(advantage, valid)
    return (advantage - mean) / (std + 1e-8)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale gradients to an L2 norm of at most `max_norm` (0: leave them); the norm before, []."""
    bound = max_norm if max_norm > 0 else float("inf")
    return torch.nn.utils.clip_grad_norm_(parameters, bound, foreach=True)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over valid rows; 1 is perfect, 0 a constant guess."""
    _, residual_std = masked_mean_std(target - value, valid)
    _, target_std = masked_mean_std(target, valid)
    return 1.0 - residual_std.square() / target_std.square().clamp(min=1e-8)
