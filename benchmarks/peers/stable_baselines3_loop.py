"""Train PPO or SAC of Stable-Baselines3 with its defaults, for `benchmarks.profiler`.

    PYTHON benchmarks/peers/stable_baselines3_loop.py --algo ppo --env-steps 10000

PYTHON is an interpreter with `stable-baselines3`. Nothing of Redline is imported.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO, SAC

ENVS = {"ppo": "CartPole-v1", "sac": "Pendulum-v1"}


def main() -> None:
    """Train for a fixed number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=sorted(ENVS), required=True)
    parser.add_argument("--env-steps", type=int, default=10_000)
    parser.add_argument("--loop-seconds-to", type=Path, help="file for the seconds of learning")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = {"ppo": PPO, "sac": SAC}[options.algo]
    model = kind("MlpPolicy", ENVS[options.algo], seed=0, device="cpu")
    began = time.perf_counter()
    model.learn(options.env_steps)
    if options.loop_seconds_to is not None:
        options.loop_seconds_to.write_text(str(time.perf_counter() - began))


if __name__ == "__main__":
    main()
