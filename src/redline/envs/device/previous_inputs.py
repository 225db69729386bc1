"""Environments on a device whose observations also hold the action before and its reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redline.data import EpisodeRecord, NestedTensor
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.previous_inputs import joined, refuse_without_previous
from redline.previous_inputs import ACTION, REWARD, ActionColumns, with_previous


class DevicePreviousInputs(DeviceVecEnv):
    """`PreviousInputs` for tensors on a device, by the same table; nothing is waited for.

    Args:
        env: owned from now on.

    Raises:
        SpaceError: if the observation has entries of these names itself.
    """

    def __init__(self, env: DeviceVecEnv) -> None:
        self._env, self.device = env, env.device
        self.num_envs, self.env_id, self.backend = env.num_envs, env.env_id, env.backend
        self._space = with_previous(env.observation_space, env.action_space)
        self.observation_space = self._space
        self.action_space = env.action_space
        self.frame_skip, self.can_idle = env.frame_skip, env.can_idle
        self.has_fillers, self.first_env_id = env.has_fillers, env.first_env_id
        self._columns = ActionColumns(
            env.action_space, lambda array: torch.from_numpy(array).to(env.device)
        )
        self._now = self._zeros()

    def _zeros(self) -> dict[str, Tensor]:
        return {
            ACTION: torch.zeros(self.num_envs, self._columns.size, device=self.device),
            REWARD: torch.zeros(self.num_envs, 1, device=self.device),
        }

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self._env.restorable

    @property
    def in_episode(self) -> Tensor:
        """[B] bool, the environments that are in the middle of an episode."""
        return self._env.in_episode

    def reset(self, seed: int | None = None) -> NestedTensor:
        """Start a new episode everywhere; see `DeviceVecEnv.reset`."""
        self._now = self._zeros()
        return joined(self._env.reset(seed), self._now, self._space)

    def step(self, action: NestedTensor, active: Tensor | None = None) -> DeviceStep:
        """Take one step in each environment; see `DeviceVecEnv.step`."""
        step = self._env.step(action, active)
        taken = self._zeros()
        self._columns.write(taken[ACTION], action)
        taken[REWARD].copy_(step.reward.unsqueeze(-1))
        begins = step.terminated | step.truncated | ~step.valid
        now = {name: leaf.masked_fill(begins.unsqueeze(-1), 0.0) for name, leaf in taken.items()}
        if active is not None:
            stepped = active.unsqueeze(-1)
            now = {name: torch.where(stepped, now[name], self._now[name]) for name in now}
        self._now = now
        return step._replace(
            obs=joined(step.obs, now, self._space),
            final_obs=joined(step.final_obs, taken, self._space),
        )

    def take_records(self) -> Sequence[EpisodeRecord]:
        """See `DeviceVecEnv.take_records`."""
        return self._env.take_records()

    def carried(self) -> Any:
        """See `DeviceVecEnv.carried`."""
        inside = self._env.carried()
        return None if inside is None else {"env": inside, "now": self._now}

    def take_carried(self, carried: Any) -> None:
        """See `DeviceVecEnv.take_carried`."""
        self._env.take_carried(carried["env"])
        self._now = carried["now"]

    def raise_faults(self) -> None:
        """Look for what went wrong since the last look; see `DeviceVecEnv.raise_faults`."""
        self._env.raise_faults()

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `VecEnv.set_attr`."""
        self._env.set_attr(name, value)

    def state_dict(self) -> dict[str, Any]:
        """The environments' own state, and the actions and rewards before."""
        return {
            "env": self._env.state_dict(),
            **{name: leaf.cpu().numpy() for name, leaf in self._now.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> NestedTensor:
        """Go on from `state`; see `DeviceVecEnv.load_state_dict`."""
        refuse_without_previous(state, self.env_id)
        obs = self._env.load_state_dict(state["env"])
        self._now = {
            name: torch.as_tensor(state[name]).to(self.device, torch.float32, copy=True)
            for name in self._now
        }
        return joined(obs, self._now, self._space)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
