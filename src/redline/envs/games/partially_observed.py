"""CartPole with its velocities hidden: a task that needs memory.

The observation is (cart position, pole angle), so one frame does not tell which way the
pole moves. A feed-forward policy cannot balance it for long; a recurrent one can.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

from redline.envs.spaces.nested import Array

PREFIX = "redline/"
HIDDEN_VELOCITY = "redline/CartPoleHiddenVelocity-v1"


def make_hidden_velocity(**kwargs: Any) -> gymnasium.Env[Array, int]:
    """CartPole-v1 that shows positions only."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs)
    shown = env.observation_space
    if not isinstance(shown, spaces.Box):
        raise TypeError(f"CartPole-v1 has the observation space {shown}, expected a Box")
    space = spaces.Box(shown.low[[0, 2]], shown.high[[0, 2]], dtype=np.float32)
    return TransformObservation(env, _positions, space)


def _positions(obs: Array) -> Array:
    return obs[[0, 2]]


def register() -> None:
    """Make the id known to Gymnasium."""
    if HIDDEN_VELOCITY not in gymnasium.registry:
        gymnasium.register(
            HIDDEN_VELOCITY,
            entry_point="redline.envs.games.partially_observed:make_hidden_velocity",
        )
