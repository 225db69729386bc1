"""Two goal environments, one with discrete and one with continuous actions.

Both observe a Dict of "observation", "achieved_goal" and "desired_goal", and pay -1 for every step
whose outcome is not the goal. That tells a learner next to nothing before it has reached a goal by
chance, which is what hindsight experience replay is for (Andrychowicz et al. 2017,
arXiv:1707.01495; bit flipping is their section 3.1).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from redline.errors import ConfigError
from redline.nested import Array

BIT_FLIPPING, POINT_REACH = "redline/BitFlipping-v1", "redline/PointReach-v1"


class GoalTask(gymnasium.Env[dict[str, Array], Any]):
    """An environment whose reward is a function of what was achieved and what was desired.

    An episode goes on when the goal is reached, so that staying there is what pays most; it is cut
    after `max_steps`. The last step's info says in "is_success" whether the goal is reached.

    Args:
        goals: space of the goals.
        observations: space of the rest of the observation.
        max_steps: length of an episode.
    """

    observation_space: spaces.Space[Any]

    def __init__(
        self, goals: spaces.Space[Any], observations: spaces.Space[Any], max_steps: int
    ) -> None:
        self.observation_space = spaces.Dict(
            {"observation": observations, "achieved_goal": goals, "desired_goal": goals}
        )
        self.max_steps = max_steps
        self._steps = 0
        self._place = self._goal = np.zeros(goals.shape or (), goals.dtype)

    @abstractmethod
    def _draw(self) -> Array:
        """A place, or a goal."""

    @abstractmethod
    def _move(self, action: Any) -> Array:
        """The place after an action."""

    @abstractmethod
    def _is_reached(self, achieved: Array, desired: Array) -> Array:
        """[...] bool of goals [..., n]."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """0 where the goal is reached, else -1; of goals [..., n], float32 [...]."""
        del info
        reached = self._is_reached(achieved_goal, desired_goal)
        return np.asarray(reached, np.float32) - np.float32(1.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Draw a place and a goal."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        self._place, self._goal = self._draw(), self._draw()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Move, and pay -1 unless that is the goal."""
        self._steps += 1
        self._place = self._move(action)
        reward = float(self.compute_reward(self._place, self._goal, {}))
        truncated = self._steps >= self.max_steps
        return self._observe(), reward, False, truncated, {"is_success": reward == 0.0}

    def _observe(self) -> dict[str, Array]:
        place = self._place.copy()
        return {"observation": place, "achieved_goal": place, "desired_goal": self._goal.copy()}

    def get_state(self) -> dict[str, Any]:
        """What `set_state` needs to go on from here exactly."""
        return {
            "place": self._place,
            "goal": self._goal,
            "steps": self._steps,
            "rng": self.np_random,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        self._place, self._goal = state["place"], state["goal"]
        self._steps, self.np_random = state["steps"], state["rng"]


class BitFlipping(GoalTask):
    """Turn n bits into the wanted ones, one flip per step.

    Args:
        bits: n.

    Raises:
        ConfigError: if it is below 1.
    """

    def __init__(self, bits: int = 10) -> None:
        if bits < 1:
            raise ConfigError(f"bits={bits} must be at least 1.")
        space = spaces.Box(0.0, 1.0, (bits,), np.float32)
        super().__init__(space, space, max_steps=bits)
        self.action_space = spaces.Discrete(bits)

    def _draw(self) -> Array:
        return self.np_random.integers(0, 2, self._goal.shape).astype(np.float32)

    def _move(self, action: Any) -> Array:
        place = self._place.copy()
        place[action] = 1.0 - place[action]
        return place

    def _is_reached(self, achieved: Array, desired: Array) -> Array:
        return (achieved == desired).all(-1)


class PointReach(GoalTask):
    """Move a point in the square [-1, 1]^2 to within 0.05 of the goal, by up to 0.1 per axis."""

    def __init__(self) -> None:
        space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(space, space, max_steps=50)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _draw(self) -> Array:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _move(self, action: Any) -> Array:
        step = np.clip(np.asarray(action, np.float32), -1.0, 1.0) * np.float32(0.1)
        return np.clip(self._place + step, -1.0, 1.0).astype(np.float32)

    def _is_reached(self, achieved: Array, desired: Array) -> Array:
        return np.linalg.norm(achieved - desired, axis=-1) < 0.05


def register() -> None:
    """Make the ids known to Gymnasium."""
    for env_id, maker in ((BIT_FLIPPING, "BitFlipping"), (POINT_REACH, "PointReach")):
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"redline.envs.games.goal_tasks:{maker}")
