"""Train PPO on CartPole-v1, evaluate it, draw its learning curve: what `make demo` runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import redline
from redline.train.progress.curves import plot_runs

OUT = Path("demo-run")
SOLVED = 475.0


class StopWhenSolved:
    """Stop the run after 20 episodes in a row that reach what counts as solved."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def on_episode(self, state: Any) -> None:
        """Called with each episode that ended."""
        self.in_a_row = self.in_a_row + 1 if state.episode.return_ >= SOLVED else 0
        if self.in_a_row == 20:
            state.stop(f"20 episodes in a row reached {SOLVED:g}")


def main() -> int:
    """Run the demonstration; 0 if the agent solves CartPole."""
    shutil.rmtree(OUT, ignore_errors=True)
    run = redline.train(
        "ppo",
        env="CartPole-v1",
        total_env_steps=50_000,
        seed=1,
        out=OUT,
        callbacks=[StopWhenSolved()],
    )
    if run.exit_code:
        return run.exit_code
    result = run.evaluate(episodes=20)
    curve = OUT / "learning_curve.png"
    plot_runs([OUT], curve)
    print(
        f"\nmean return over {result.episodes} evaluation episodes: {result.return_mean:.1f} "
        f"({SOLVED:g} counts as solved)\n\n"
        f"run directory    {OUT.resolve()}\n"
        f"progress         {(OUT / 'progress.csv').resolve()}\n"
        f"checkpoints      {(OUT / 'checkpoints').resolve()}\n"
        f"learning curve   {curve.resolve()}\n\n"
        f"next: redline eval {OUT} --episodes 20"
    )
    return 0 if result.return_mean >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main())
