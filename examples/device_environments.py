"""Environments that are stepped where the policy learns: thousands at once, on a CPU or a GPU.

    python examples/device_environments.py --device cuda

The native games (`redline/CartPole-v1`, `redline/Breakout-v1`, ...) step their whole batch in
tensor operations. Nothing leaves the device while a run collects and learns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch

import redline
from redline.envs import make_device_vec


def steps_per_second(num_envs: int, steps: int, device: str) -> float:
    """How fast random actions are stepped, over all environments."""
    with make_device_vec("redline/CartPole-v1", num_envs, device=device) as env:
        env.reset(seed=1)
        actions = torch.randint(2, (steps, num_envs), device=device)
        began_s = time.perf_counter()
        for action in actions:
            step = env.step(action)
        float(step.reward.sum())  # waits for the device
        return num_envs * steps / (time.perf_counter() - began_s)


def main(argv: Sequence[str] | None = None) -> float:
    """Step a batch, then train PPO on one; the mean return of 10 episodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200, help="of the batch, for its speed")
    parser.add_argument("--env-steps", type=int, default=500_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train(
        "ppo",
        env="redline/CartPole-v1",
        num_envs=given.num_envs,
        rollout_length=32,
        total_env_steps=given.env_steps,
        device=given.device,
        out=given.out,
    )
    speed = steps_per_second(given.num_envs, given.steps, run.config.run.device)
    print(f"{given.num_envs:,} environments on {run.config.run.device}: {speed:,.0f} steps/s")
    result = run.evaluate(episodes=10)
    print(f"mean return of 10 episodes: {result.return_mean:.1f}")
    return result.return_mean


if __name__ == "__main__":
    main()
