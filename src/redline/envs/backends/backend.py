"""What every back end supplies: raw steps into fixed buffers, nothing else.

A back end knows how to reset and step B environments. Checks, episode accounting, lost
lives and reward clipping are the same for all and sit above it, in `BatchedEnv`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import Space

from redline.envs.spaces.actions import ActionCodec
from redline.envs.spaces.nested import Array, NestedArray, map_leaves
from redline.envs.vec_env import zeros_like_space


@dataclass(slots=True, kw_only=True)
class StepBuffers:
    """The arrays that a back end writes, allocated once.

    Attributes:
        obs: [B, ...] the observation to act on next.
        final_obs: [B, ...] the last observation of an episode that ended in this step,
            meaningless in other rows.
        reward: [B] float64, raw; 0 where not valid.
        terminated: [B] bool, the game ended.
        truncated: [B] bool, the game was cut short.
        valid: [B] bool, false for filler steps and idle environments.
        lives: [B] int32, lives left in the game that goes on; 0 where there are none.
    """

    obs: NestedArray
    final_obs: NestedArray
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    lives: Array

    @classmethod
    def allocate(cls, space: Space[Any], num_envs: int) -> StepBuffers:
        """Zeroed buffers of B environments whose carried observation space is `space`."""
        return cls(
            obs=zeros_like_space(space, num_envs),
            final_obs=zeros_like_space(space, num_envs),
            reward=np.zeros(num_envs, dtype=np.float64),
            terminated=np.zeros(num_envs, dtype=np.bool_),
            truncated=np.zeros(num_envs, dtype=np.bool_),
            valid=np.ones(num_envs, dtype=np.bool_),
            lives=np.zeros(num_envs, dtype=np.int32),
        )

    def rows(self, begin: int, end: int) -> StepBuffers:
        """Views of the environments begin .. end - 1."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return StepBuffers(
            **{name: map_leaves(lambda leaf: leaf[begin:end], part) for name, part in parts.items()}
        )

    def clear_flags(self) -> None:
        """The flags as they are before any step."""
        self.reward[...] = 0.0
        self.terminated[...] = False
        self.truncated[...] = False
        self.valid[...] = True


class Backend(ABC):
    """B environments stepped together.

    Attributes:
        name: "gymnasium", "processes", "envpool", "ale", "device" or "vector".
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.
        observation_space: carried space of one environment's observation.
        codec: checks and converts actions.
        buffers: what `reset` and `step` write.
        frame_skip: simulator frames per step.
        can_idle: whether `step` accepts an `active` mask.
        restorable: None, or why the state cannot be saved and restored bit for bit.
    """

    name: str
    num_envs: int
    first_env_id: int
    observation_space: Space[Any]
    codec: ActionCodec
    buffers: StepBuffers
    frame_skip: int = 1
    can_idle: bool = False
    restorable: str | None = None

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere: write `obs` and `lives`."""

    @abstractmethod
    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step with an encoded `action`, write every buffer, and say whether any episode ended.

        Where one did, `final_obs` has its last observation, and `obs` the first of the next
        episode (or, in a back end that resets on the next step, the same as `final_obs`).
        """

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Set the environments off; what steps in this process does so in `finish_step`."""
        self._begun = (action, active)

    def finish_step(self) -> bool:
        """Wait for the step that was begun, and say what `step` says."""
        return self.step(*self._begun)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The simulators' state: arrays, numbers, strings, lists and dicts."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, with `obs` and `lives` as they were.

        Raises:
            EnvError: if it does not fit or did not reproduce the saved observation.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold."""
