"""Train with Stable-Baselines3 and time the steady part; prints one JSON object.

    PYTHON -m benchmarks.peers.stable_baselines3_train --algo sac --settings JSON \
        --warmup 500 --measured 600 --threads 1

PYTHON is an interpreter with `stable-baselines3` and the environments. Nothing of Redline is
imported. The settings are those of `benchmarks/workloads.py`.
"""

from __future__ import annotations

import argparse
import json

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers.stable_baselines3_models import ALGORITHMS, make_model
from benchmarks.peers.stopwatch import Stopwatch


class Clock(BaseCallback):
    """Stops the training when the stopwatch has run."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self._stopwatch = stopwatch

    def _on_step(self) -> bool:
        return not self._stopwatch.reached(self.num_timesteps)


def main() -> None:
    """Train until the clock has run, then print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=ALGORITHMS, required=True)
    parser.add_argument("--settings", required=True, help="JSON object")
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--measured", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    total = 10 * (arguments.warmup + arguments.measured)
    settings = json.loads(arguments.settings)
    model = make_model(arguments.algo, settings, total_env_steps=total, seed=arguments.seed)
    stopwatch = Stopwatch(arguments.warmup, arguments.measured)
    model.learn(total, callback=Clock(stopwatch))
    stopwatch.print_result(version=stable_baselines3.__version__)


if __name__ == "__main__":
    main()
