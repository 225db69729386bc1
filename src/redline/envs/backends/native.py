"""A native game behind the contract of every other back end: numpy arrays, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from redline.envs.backends.backend import Backend, StepBuffers
from redline.envs.games.native import NativeEnv
from redline.envs.spaces.actions import make_codec
from redline.envs.spaces.nested import Array, NestedArray


class DeviceBackend(Backend):
    """The numpy view of a `NativeEnv`, for evaluation and for collectors that step arrays.

    Args:
        env: on any device; owned from now on.
    """

    name = "device"
    can_idle = True

    def __init__(self, env: NativeEnv) -> None:
        self._env = env
        self.num_envs, self.first_env_id = env.num_envs, env.first_env_id
        self.observation_space = env.observation_space
        self.codec = make_codec(env.action_space, env.num_envs, self._label)
        self.buffers = StepBuffers.allocate(env.observation_space, env.num_envs)

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere."""
        self.buffers.clear_flags()
        self._show(self._env.reset(seed))

    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step all, or those in `active`."""
        mask = None if active is None else torch.from_numpy(active).to(self._env.device)
        given = torch.from_numpy(np.asarray(action)).to(self._env.device)
        step = self._env.step(given, mask)
        buffers = self.buffers
        self._show(step.obs)
        for target, value in (
            (buffers.final_obs, step.final_obs),
            (buffers.reward, step.reward),
            (buffers.terminated, step.terminated),
            (buffers.truncated, step.truncated),
            (buffers.valid, step.valid),
        ):
            np.copyto(target, value.cpu().numpy())  # type: ignore[arg-type,union-attr]
        return bool(buffers.terminated.any() or buffers.truncated.any())

    def _show(self, obs: Any) -> None:
        np.copyto(self.buffers.obs, obs.cpu().numpy())  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """The state of every game and its random stream."""
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.buffers.clear_flags()
        self._show(self._env.load_state_dict(state))

    def close(self) -> None:
        """Forget the state."""
        self._env.close()

    def _label(self, index: int) -> str:
        return f"{self._env.env_id}, environment {self.first_env_id + index}"
