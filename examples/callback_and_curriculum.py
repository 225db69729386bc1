"""Callbacks: a number of one's own in the logs, a stop, and environments that get harder.

    python examples/callback_and_curriculum.py

The corridor of `own_env.py` begins short. It grows as soon as the agent walks it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from own_env import Corridor

import redline

AT_RETURN = 0.5  # of at most 1, less a hundredth for each step on the way


class GrowingCorridor(Corridor):
    """A corridor whose length a curriculum sets; it holds from the next episode on."""

    def __init__(self) -> None:
        super().__init__(length=20)
        self.field = 2  # the field to reach

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Begin at the left end, with the length that was set last."""
        self._length = self.field
        return super().reset(**given)


class StopWhenGood:
    """Counts iterations in a row with a good return, logs the count, and stops at enough.

    Args:
        enough: iterations in a row.
    """

    def __init__(self, enough: int) -> None:
        self.enough, self.good = enough, 0

    def on_iteration(self, state: Any) -> None:
        """Called after each collection and the updates that follow it."""
        self.good = self.good + 1 if state.mean_return > AT_RETURN else 0
        state.log("mine/good_iterations", self.good)
        if self.good >= self.enough:
            state.stop(f"the corridor was walked for {self.enough} iterations")


def main(argv: Sequence[str] | None = None) -> int:
    """Train with both; the env_steps taken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--enough", type=int, default=50, help="good iterations, to stop")
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train(
        "ppo",
        env=GrowingCorridor,
        total_env_steps=given.env_steps,
        num_envs=8,
        rollout_length=64,
        learning_rate=1e-3,
        out=given.out,
        callbacks=[
            redline.Curriculum("field", [2, 4, 8, 16], at_return=AT_RETURN),
            StopWhenGood(given.enough),
        ],
    )
    rows = run.progress()
    steps = int(rows["env_steps"][-1])
    print(f"{steps:,} env_steps, {rows['mine/good_iterations'][-1]:.0f} good iterations in a row")
    return steps


if __name__ == "__main__":
    main()
