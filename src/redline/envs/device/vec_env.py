"""`DeviceVecEnv`: the contract of `VecEnv` with tensors on one device in place of arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

from redline.data import EpisodeRecord, NestedTensor
from redline.errors import ConfigError


class DeviceStep(NamedTuple):
    """What one step of B environments gives back, on the device; nothing was waited for.

    Attributes:
        obs: [B, ...] the observation to act on next (of the new episode where one ended).
        reward: [B] float32, as the learner is to see it.
        terminated: [B] bool; the learner's episode ended in a terminal state.
        truncated: [B] bool; it was cut short, so its value must be bootstrapped.
        valid: [B] bool; false for a filler step and for an environment that was left idle.
        final_obs: [B, ...] the true last observation in the rows where terminated or
            truncated, undefined in the others.
        episode_id: [B] int64, the episode that this step belonged to.
        episode_ended: [B] bool; the real game ended, its return and length are final.
        episode_return: [B] float64, sum of the real game's rewards so far.
        episode_length: [B] int64, its env_steps so far.
    """

    obs: NestedTensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_obs: NestedTensor
    episode_id: Tensor
    episode_ended: Tensor
    episode_return: Tensor
    episode_length: Tensor


class DeviceVecEnv(ABC):
    """B environments of one kind whose data live on one device.

    Attributes:
        num_envs: B.
        env_id: the name it was made from.
        backend: what steps them, as in `VecEnv`.
        device: where the tensors are that go in and come out.
        observation_space: of one environment, as the policy sees it.
        action_space: of one environment.
        frame_skip: simulator frames per env_step.
        can_idle: whether `step` accepts an `active` mask.
        has_fillers: whether a step without a mask may have rows that are not valid.
        restorable: None if the state can be saved and restored bit for bit, else why not.
        first_env_id: index of the first environment in the whole batch.
    """

    num_envs: int
    env_id: str
    backend: str
    device: torch.device
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    frame_skip: int = 1
    can_idle: bool = False
    has_fillers: bool = False
    restorable: str | None = None
    first_env_id: int = 0

    @abstractmethod
    def reset(self, seed: int | None = None) -> NestedTensor:
        """Start a new episode everywhere; see `VecEnv.reset`.

        Returns:
            [B, ...] the first observations.
        """

    @abstractmethod
    def step(self, action: NestedTensor, active: Tensor | None = None) -> DeviceStep:
        """Take one step in each environment.

        Args:
            action: [B, ...] in the action space's structure, zero-based, on the device.
            active: [B] bool, which environments to step; None means all. An idle one keeps
                its observation, and its row is zero and not valid.

        Raises:
            ConfigError: if it was not reset, or `active` is given and `can_idle` is false.
            ActionError: for an action of the wrong shape or dtype. Bad values are found by
                `raise_faults`: looking at them here would wait for the device.
        """

    def take_records(self) -> Sequence[EpisodeRecord]:
        """The episodes that ended since this was last called, where more is known than tensors say.

        What an environment's last info says, its success and values to log, is on the host.
        """
        return ()

    def carried(self) -> NestedTensor | None:
        """All tensors that a step replaces by others, nested; it depends on nothing else.

        None: a step does more than that, so that it cannot be captured in a graph.
        """
        return None

    def take_carried(self, carried: NestedTensor) -> None:
        """Go on from tensors of the same structure as `carried` gave."""
        raise NotImplementedError(f"{type(self).__name__} cannot be captured")

    @property
    @abstractmethod
    def in_episode(self) -> Tensor:
        """[B] bool, the environments that are in the middle of an episode."""

    @abstractmethod
    def raise_faults(self) -> None:
        """Look for what went wrong since the last look. Waits for the device.

        Raises:
            ActionError: if an action lay outside the action space; names the environment.
            EnvDataError: if a reward or a state is NaN or infinite.
        """

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `VecEnv.set_attr`.

        Raises:
            ConfigError: if they have none that can be set, as native games.
        """
        del value
        raise ConfigError(
            f"{type(self).__name__} cannot set the attribute {name!r} of its environments: they "
            f"are stepped as one batch. Use the original with env_backend='gymnasium'."
        )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: arrays, numbers, strings, dicts.

        Raises:
            EnvError: if `restorable` is not None, or there was no reset.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> NestedTensor:
        """Go on from `state`.

        Returns:
            [B, ...] the observations to act on next.

        Raises:
            EnvError: if the state does not fit.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold. Calling it twice does no harm."""

    def __enter__(self) -> DeviceVecEnv:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
