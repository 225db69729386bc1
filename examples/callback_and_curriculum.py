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


class GrowingCorridor(Corridor):
    """A corridor whose length a curriculum sets; it holds from the next episode on."""

    def __init__(self) -> None:
        super().__init__(length=20)
        self.field = 2  # the field to reach

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Begin at the left end, with the length that was set last."""
        self._length = self.field
        return super().reset(**given)


class StopAtTheEnd:
    """Logs how far the corridor reaches, and stops once the agent walks the longest."""

    def __init__(self) -> None:
        self.good = 0

    def on_iteration(self, state: Any) -> None:
        """Called after each collection and the updates that follow it."""
        self.good = self.good + 1 if state.mean_return > 0.0 else 0
        state.log("mine/good_iterations", self.good)
        if self.good >= 20:
            state.stop("the corridor was walked for 20 iterations")


def main(argv: Sequence[str] | None = None) -> int:
    """Train with both; the env_steps taken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train(
        "ppo",
        env=GrowingCorridor,
        total_env_steps=given.env_steps,
        out=given.out,
        callbacks=[
            redline.Curriculum("field", [2, 4, 8, 16], at_return=0.0),
            StopAtTheEnd(),
        ],
    )
    rows = run.progress()
    steps = int(rows["env_steps"][-1])
    print(f"{steps:,} env_steps, {rows['mine/good_iterations'][-1]:.0f} good iterations in a row")
    return steps


if __name__ == "__main__":
    main()
