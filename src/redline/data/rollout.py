"""What collectors produce and updates consume.

| symbol | shape | meaning |
|---|---|---|
| T, B | | rollout_length, num_envs; every tensor is time-major |
| obs | [T, B, ...] | what the policy saw before it acted |
| action | [T, B, ...] | what it did, in the action space's own structure |
| reward | [T, B] | reward of that action |
| terminated, truncated | [T, B] | Gymnasium's meaning, for that action |
| valid | [T, B] | true where the row is a real transition |
| final_obs | [T, B, ...] | the true successor where an episode ended, else zero |
| env_id, episode_id | [T, B] | which environment, which of its episodes |
| extras | [T, B, ...] | the policy's own outputs, such as log_prob and value |
| bootstrap_value | [T, B] | V(true successor) where truncated or (not ended) at t = T - 1 |
| initial_state | [B, ...] | the policy's recurrent state before t = 0 |
| last_obs | [B, ...] | the observation to act on after t = T - 1 |

Invalid rows are zero, never stale.
"""

# tensordict ships no types for what indexing gives.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.data.nested import NestedTensor, map_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One finished episode of the real game: unclipped, unscaled, lives not counted as ends.

    Attributes:
        env_id: index of the environment, 0 .. num_envs - 1.
        episode_id: how many episodes that environment had finished before this one.
        return_: sum of the environment's own rewards.
        length: number of env_steps.
    """

    env_id: int
    episode_id: int
    return_: float
    length: int


@dataclass(slots=True, kw_only=True)
class Rollout:
    """T steps of B environments; the table in the module docstring names the parts.

    Attributes:
        steps: [T, B] TensorDict with obs, action, reward, terminated, truncated, valid,
            final_obs, env_id, episode_id, bootstrap_value and one entry per extra.
        initial_state: [B, ...] recurrent state before t = 0; empty for a policy without one.
        last_obs: [B, ...] observation after the last row.
        episodes: finished episodes, in the order in which they ended.
        version: number of the weights that acted.
        num_running: environments that still had an episode to finish after the last row: all
            of them, unless the number of episodes is limited.
    """

    steps: TensorDict
    initial_state: dict[str, Tensor]
    last_obs: NestedTensor
    episodes: list[EpisodeRecord] = field(default_factory=list)
    version: int = 0
    num_running: int = 0

    @property
    def rollout_length(self) -> int:
        """T."""
        return self.steps.batch_size[0]

    @property
    def num_envs(self) -> int:
        """B."""
        return self.steps.batch_size[1]

    def __getitem__(self, key: str) -> Any:
        """The [T, B, ...] tensor (or TensorDict) called `key`."""
        return self.steps[key]

    @property
    def valid(self) -> Tensor:
        """[T, B] bool, true where the row is a real transition."""
        return self.steps["valid"]

    @property
    def done(self) -> Tensor:
        """[T, B] bool, terminated or truncated."""
        return self.steps["terminated"] | self.steps["truncated"]

    def num_valid(self) -> int:
        """Number of real transitions: what env_steps grows by. Waits for the device."""
        valid = self.valid
        if valid.is_cpu:  # counting takes an eighth of the time there
            return int(np.count_nonzero(valid.numpy()))
        return int(valid.sum())

    def select_envs(self, index: Tensor) -> Rollout:
        """The rollout of some of its environments, for minibatches of whole sequences.

        Args:
            index: [b] int64, which of the B environments, in this order.
        """
        return Rollout(
            steps=self.steps[:, index],
            initial_state={name: leaf[index] for name, leaf in self.initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf[index], self.last_obs),
            version=self.version,
        )

    def flatten(self, *keys: str) -> Rollout:
        """All T * B rows side by side, for minibatches of single transitions.

        Args:
            keys: the entries to keep; gathering the others would cost for nothing.

        Returns:
            A rollout of shape [1, T * B], a view of this one, with no state and no last_obs.
        """
        rows = self.rollout_length * self.num_envs
        return Rollout(
            steps=self.steps.select(*keys).reshape(1, rows),
            initial_state={},
            last_obs={},
            version=self.version,
        )

    def to(self, device: torch.device | str) -> Rollout:
        """The same rollout on `device` (itself if it is there already)."""
        return Rollout(
            steps=self.steps.to(device),
            initial_state={name: leaf.to(device) for name, leaf in self.initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf.to(device), self.last_obs),
            episodes=self.episodes,
            version=self.version,
            num_running=self.num_running,
        )


def masked_mean(value: Tensor, valid: Tensor) -> Tensor:
    """Mean over the rows where `valid`; NaN in the others does not leak in.

    Args:
        value: [...] any float.
        valid: [...] bool, same shape.

    Returns:
        [] the mean; 0 if no row is valid.
    """
    kept = torch.where(valid, value, torch.zeros_like(value))
    return kept.sum() / valid.sum().clamp(min=1)


def masked_mean_std(value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation over valid rows; (0, 0) if there are none."""
    mean = masked_mean(value, valid)
    variance = masked_mean((value - mean).square(), valid)
    return mean, variance.sqrt()
