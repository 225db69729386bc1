"""An environment of one's own: any `gymnasium.Env`, given as its class.

    python examples/own_env.py

or, from this folder, on the command line, where the module registers it:

    redline train ppo --env own_env:Corridor-v0
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

import redline


class Corridor(gymnasium.Env[Any, Any]):
    """Walk from the left end of a corridor to the right one, in as few steps as possible.

    Args:
        length: fields from one end to the other.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, length: int = 8) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)  # left, right
        self._length, self._place, self._steps = length, 0, 0

    def _observed(self) -> Any:
        return np.array([self._place / self._length], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin at the left end."""
        super().reset(seed=seed)
        self._place = self._steps = 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One field; `is_success` in the last info becomes the success rate in the logs."""
        self._place = max(0, self._place + (1 if action == 1 else -1))
        self._steps += 1
        arrived = self._place == self._length
        info = {"is_success": arrived}
        return self._observed(), 1.0 if arrived else -0.01, arrived, self._steps == 50, info


gymnasium.register("Corridor-v0", entry_point=Corridor)


def main(argv: Sequence[str] | None = None) -> float:
    """Train PPO in a corridor; the share of evaluated episodes that arrive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train("ppo", env=Corridor, total_env_steps=given.env_steps, out=given.out)
    result = run.evaluate(episodes=20)
    print(f"arrived in {result.success_rate:.0%} of 20 episodes")
    return result.success_rate or 0.0


if __name__ == "__main__":
    main()
