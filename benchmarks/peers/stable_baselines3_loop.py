"""Train PPO or SAC of Stable-Baselines3 with its defaults, for `benchmarks.profiler`.

    PYTHON benchmarks/peers/stable_baselines3_loop.py --algo ppo --env-steps 10000

PYTHON is an interpreter with `stable-baselines3`. Nothing of Redline is imported.
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3 import PPO, SAC

ENVS = {"ppo": "CartPole-v1", "sac": "Pendulum-v1"}


def main() -> None:
    """Train for a fixed number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=sorted(ENVS), required=True)
    parser.add_argument("--env-steps", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = {"ppo": PPO, "sac": SAC}[options.algo]
    model = kind("MlpPolicy", ENVS[options.algo], seed=0, device="cpu")
    model.learn(options.env_steps)


if __name__ == "__main__":
    main()
