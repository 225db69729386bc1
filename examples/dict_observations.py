"""Observations in several parts: a Dict space of a picture and a vector, as it stands.

    python examples/dict_observations.py

Each part gets an encoder that fits it, and what they find is joined. Images too small for the large
convolutional networks get the small one by themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

import redline


class FindTheLight(gymnasium.Env[Any, Any]):
    """A light shines in one of four columns of a picture; a vector says: seek it, or avoid it."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (1, 10, 10), np.uint8),
                "wish": spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(4)
        self._column, self._seek, self._steps = 0, True, 0

    def _observed(self) -> dict[str, Any]:
        picture = np.zeros((1, 10, 10), np.uint8)
        picture[0, :, 2 * self._column : 2 * self._column + 2] = 255
        return {"picture": picture, "wish": np.array([self._seek, not self._seek], np.float32)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new light and a new wish."""
        super().reset(seed=seed)
        self._steps = 0
        self._next()
        return self._observed(), {}

    def _next(self) -> None:
        self._column = int(self.np_random.integers(4))
        self._seek = bool(self.np_random.integers(2))

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """1 for a wish that was met; ten lights make an episode."""
        reward = float((action == self._column) == self._seek)
        self._steps += 1
        self._next()
        return self._observed(), reward, self._steps == 10, False, {}


def main(argv: Sequence[str] | None = None) -> float:
    """Train PPO on pictures and vectors; the mean return of 20 episodes, at best 10."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train(
        "ppo",
        env=FindTheLight,
        num_envs=8,
        rollout_length=64,
        total_env_steps=given.env_steps,
        out=given.out,
    )
    result = run.evaluate(episodes=20)
    print(f"{result.return_mean:.1f} of 10 wishes met")
    return result.return_mean


if __name__ == "__main__":
    main()
