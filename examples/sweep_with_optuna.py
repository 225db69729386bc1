"""Search hyperparameters with Optuna (extra: tune), from Python.

    python examples/sweep_with_optuna.py

Trials run side by side, bad ones end early, and the best settings stand in a file that
`redline train --config` reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import redline


def main(argv: Sequence[str] | None = None) -> Path:
    """Search learning rate and discount of PPO on CartPole; where the best settings stand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--env-steps", type=int, default=20_000, help="of each trial")
    parser.add_argument("--slots", type=int, help="trials at the same time; else one per core")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    given = parser.parse_args(argv)
    found = redline.tune(
        {
            "algorithm": "ppo",
            "base": {"env": "CartPole-v1", "total_env_steps": given.env_steps},
            "search": {
                "learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
                "gamma": [0.95, 0.98, 0.99],
            },
        },
        out=given.out,
        trials=given.trials,
        slots=given.slots,
    )
    print(f"best of {given.trials} trials: {found.best_file}")
    print(found.best_file.read_text())
    return found.best_file


if __name__ == "__main__":
    main()
