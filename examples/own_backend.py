"""An environment back end of one's own: point masses that numpy steps all at once.

    python examples/own_backend.py

trains PPO on it. From the command line:

    PYTHONPATH=examples redline train ppo --env PointMass-v0 \
        --env-backend own_backend:PointMass --out runs/point-mass
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

import redline
from redline.envs import Backend, EnvSettings, episode_seed
from redline.errors import ConfigError

TIME_STEP_S = 0.1
EPISODE_LENGTH = 50


class PointMass(Backend):
    """B masses of 1 kg in the plane, each to be pushed to the origin within 5 s.

    The observation is (position [m], velocity [m/s]), the action a force of up to 1 N along
    each axis, the reward minus the distance to the origin. Episodes are cut after 50 steps.
    """

    name = "point-mass"
    restorable = None  # state_dict() holds all that the next steps depend on

    def __init__(self, settings: EnvSettings, num_envs: int, first_env_id: int) -> None:
        self.allocate(
            settings.env_id,
            num_envs,
            first_env_id,
            observation_space=spaces.Box(-np.inf, np.inf, (4,), np.float32),
            action_space=spaces.Box(-1.0, 1.0, (2,), np.float32),
        )
        self._state = np.zeros((num_envs, 4))  # position and velocity
        self._length = np.zeros(num_envs, np.int64)
        self._num_episodes = np.zeros(num_envs, np.int64)
        self._seed = 0

    @classmethod
    def check_env(cls, env: Any) -> None:
        """Say early what this back end cannot step."""
        if env != "PointMass-v0":
            raise ConfigError(f"the point-mass back end steps PointMass-v0 only, not {env!r}.")

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere."""
        if seed is not None:
            self._seed = seed
            self._num_episodes[:] = 0
        self.buffers.clear_flags()
        self._begin(np.ones(self.num_envs, np.bool_))

    def step(self, action: Any, active: Any) -> bool:
        """Push every mass, write what came of it, and begin new episodes where one ended."""
        position, velocity = self._state[:, :2], self._state[:, 2:]
        velocity += TIME_STEP_S * action
        position += TIME_STEP_S * velocity
        self._length += 1
        ended = self._length >= EPISODE_LENGTH
        self.buffers.write_outcome(-np.linalg.norm(position, axis=1), False, ended)
        self.buffers.obs[:] = self._state
        if not ended.any():
            return False
        # Two different things: the last observation of the old episode, the first of the new.
        self.buffers.final_obs[ended] = self.buffers.obs[ended]
        self._begin(ended)
        return True

    def _begin(self, rows: Any) -> None:
        """New episodes in `rows` [B] bool, each drawn from (seed, environment, episode) alone."""
        for i in np.flatnonzero(rows):
            seed = episode_seed(self._seed, self.first_env_id + i, self._num_episodes[i])
            self._state[i] = 0.0
            self._state[i, :2] = np.random.default_rng(seed).uniform(-1.0, 1.0, 2)
        self._length[rows] = 0
        self._num_episodes[rows] += 1
        self.buffers.obs[rows] = self._state[rows]

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, as plain data."""
        return {
            "state": self._state.copy(),
            "length": self._length.copy(),
            "num_episodes": self._num_episodes.copy(),
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._state[:] = state["state"]
        self._length[:] = state["length"]
        self._num_episodes[:] = state["num_episodes"]
        self._seed = int(state["seed"])
        self.buffers.obs[:] = self._state


if __name__ == "__main__":
    run = redline.train("ppo", env="PointMass-v0", env_backend=PointMass, total_env_steps=50_000)
    print(run)
