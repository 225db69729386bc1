"""Train PPO on CartPole-v1, evaluate it, draw its learning curve: what `make demo` runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import redline
from redline.train.progress.curves import plot_runs

OUT = Path("demo-run")


def main() -> int:
    """Run the demonstration; 0 if the agent solves CartPole."""
    shutil.rmtree(OUT, ignore_errors=True)
    run = redline.train("ppo", env="CartPole-v1", total_env_steps=50_000, seed=1, out=OUT)
    if run.exit_code:
        return run.exit_code
    result = run.evaluate(episodes=20)
    curve = OUT / "learning_curve.png"
    plot_runs([OUT], curve)
    print(
        f"\nmean return over {result.episodes} evaluation episodes: {result.return_mean:.1f} "
        f"(475 counts as solved)\n\n"
        f"run directory    {OUT.resolve()}\n"
        f"progress         {(OUT / 'progress.csv').resolve()}\n"
        f"checkpoints      {(OUT / 'checkpoints').resolve()}\n"
        f"learning curve   {curve.resolve()}\n\n"
        f"next: redline eval {OUT} --episodes 20"
    )
    return 0 if result.return_mean >= 475 else 1


if __name__ == "__main__":
    sys.exit(main())
