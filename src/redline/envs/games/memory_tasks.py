"""Two tasks that need memory: a T-maze, and CartPole with its velocities hidden.

In the maze, what was seen at the first step decides what is right at the last one:

```
        up
         |
 S ------J        the cue at S says whether up or down pays
         |
        down
```

After Bakker 2002, "Reinforcement learning with long short-term memory", section 5, with a
reward of 1 for the right turn so that the optimum is 1. A policy without memory turns the
right way half of the time: its return is at most 0.5.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

from redline.errors import ConfigError
from redline.nested import Array

T_MAZE = "redline/TMaze-v1"
HIDDEN_VELOCITY = "redline/CartPoleHiddenVelocity-v1"
_FORWARD, _UP = 0, 1


class TMaze(gymnasium.Env[Array, Any]):
    """Walk a corridor, then turn as the cue said.

    Observation [4] float32: the cue is up, the cue is down (both only at the start), in the
    corridor, at the junction. Actions: 0 forward, 1 up, 2 down. A turn in the corridor and a
    step forward at the junction bump into the wall and cost 0.1. A turn at the junction ends
    the episode, with 1 if it is the cue's. An episode of 4 * corridor_length steps is cut.

    Args:
        corridor_length: steps from the start to the junction.

    Raises:
        ConfigError: if it is below 1.
    """

    def __init__(self, corridor_length: int = 10) -> None:
        if corridor_length < 1:
            raise ConfigError(f"corridor_length={corridor_length} must be at least 1.")
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.corridor_length = corridor_length
        self._position = 0
        self._steps = 0
        self._cue_is_up = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Draw a cue and go back to the start."""
        super().reset(seed=seed, options=options)
        self._position = self._steps = 0
        self._cue_is_up = bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Walk or turn."""
        self._steps += 1
        at_junction = self._position == self.corridor_length
        truncated = self._steps >= 4 * self.corridor_length
        if at_junction and action != _FORWARD:
            right = (action == _UP) == self._cue_is_up
            return self._observe(), float(right), True, False, {}
        if not at_junction and action == _FORWARD:
            self._position += 1
            return self._observe(), 0.0, False, truncated, {}
        return self._observe(), -0.1, False, truncated, {}

    def get_state(self) -> dict[str, Any]:
        """What `set_state` needs to go on from here exactly."""
        return {
            "position": self._position,
            "steps": self._steps,
            "cue_is_up": self._cue_is_up,
            "rng": self.np_random,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        self._position, self._steps = state["position"], state["steps"]
        self._cue_is_up, self.np_random = state["cue_is_up"], state["rng"]

    def _observe(self) -> Array:
        start = self._position == 0
        at_junction = self._position == self.corridor_length
        shown = [
            start and self._cue_is_up,
            start and not self._cue_is_up,
            not start and not at_junction,
            at_junction,
        ]
        return np.array(shown, dtype=np.float32)


def make_hidden_velocity(**kwargs: Any) -> gymnasium.Env[Array, int]:
    """CartPole-v1 that shows (cart position, pole angle) only.

    One observation does not tell which way the pole moves.
    """
    env = gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs)
    shown = env.observation_space
    if not isinstance(shown, spaces.Box):
        raise TypeError(f"CartPole-v1 has the observation space {shown}, expected a Box")
    space = spaces.Box(shown.low[[0, 2]], shown.high[[0, 2]], dtype=np.float32)
    return TransformObservation(env, _positions, space)


def _positions(obs: Array) -> Array:
    return obs[[0, 2]]


def register() -> None:
    """Make the ids known to Gymnasium."""
    for env_id, maker in ((T_MAZE, "TMaze"), (HIDDEN_VELOCITY, "make_hidden_velocity")):
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"redline.envs.games.memory_tasks:{maker}")
