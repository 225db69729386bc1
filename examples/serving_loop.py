"""Serving: act with a trained policy, one observation at a time, without any training code.

    python examples/serving_loop.py [RUN]

`redline.load(RUN).policy().predict` takes what `env.reset()` gives and returns what `env.step()`
takes. It carries the state of recurrent policies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import torch

import redline


def main(argv: Sequence[str] | None = None) -> float:
    """Serve a number of requests; the reward that the served environment got for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        default=Path("runs/served"),
        help="a run directory, or where to train one",
    )
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--env-steps", type=int, default=50_000, help="if there is no run yet")
    given = parser.parse_args(argv)
    if not given.run.exists():
        redline.train(
            "ppo", env="CartPole-v1", total_env_steps=given.env_steps, out=given.run, quiet=True
        )
    policy = redline.load(given.run).policy()
    torch.set_num_threads(1)  # a single observation gains nothing from more

    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    state, total, busy_s = None, 0.0, 0.0
    for _ in range(given.requests):
        began_s = time.perf_counter()
        action, state = policy.predict(obs, state)
        busy_s += time.perf_counter() - began_s
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            obs, _ = env.reset()
            state = None  # an episode begins
    env.close()
    print(f"{given.requests:,} requests, {1e6 * busy_s / given.requests:.0f} us each")
    return total


if __name__ == "__main__":
    main()
