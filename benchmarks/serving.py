"""Time of one `predict` call, beside Stable-Baselines3's, in one process and in turn.

    python -m benchmarks.serving

Both get the same observations, one at a time, and networks of the same sizes: two layers of 64
units with tanh. Blocks of calls alternate, and the median over blocks counts. Stable-Baselines3
itself has no recurrent policy, so LSTM has none beside it. Results go to
benchmarks/results/serving.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import redline
from benchmarks.machine import as_markdown, describe

RESULTS = Path(__file__).parent / "results"


class TwoParts(gymnasium.Env[Any, Any]):
    """Dict observations of two vectors; episodes of 32 steps."""

    observation_space = spaces.Dict(
        {"near": spaces.Box(-1, 1, (6,), np.float32), "far": spaces.Box(-1, 1, (3,), np.float32)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode."""
        super().reset(seed=seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Sample the next observation."""
        self._t += 1
        return self.observation_space.sample(), 1.0, self._t >= 32, False, {}


def ours(env: Any, folder: str, **settings: Any) -> Callable[[Any], Any]:
    """One call of a trained Redline policy, its state carried where it has one."""
    run = redline.train(
        "ppo", env=env, out=Path(folder) / f"{len(list(Path(folder).iterdir()))}", num_envs=2,
        rollout_length=32, total_env_steps=64, tensorboard=False, quiet=True, num_threads=1,
        preset="default", **settings,
    )  # fmt: skip
    policy = run.policy()
    carried: list[Any] = [None]

    def call(obs: Any) -> None:
        _, carried[0] = policy.predict(obs, carried[0])

    return call


def theirs(policy: str, env: Any) -> Callable[[Any], Any]:
    """One call of a Stable-Baselines3 policy with fresh weights."""
    from stable_baselines3 import PPO

    model = PPO(policy, env, device="cpu")
    return lambda obs: model.predict(obs, deterministic=True)


def alternated(
    calls: dict[str, Callable[[Any], Any]], observations: list[Any], blocks: int
) -> dict[str, list[float]]:
    """Microseconds per call in each block, the sides in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for obs in observations:
                call(obs)
            if block:  # the first one warms up
                times[name].append((time.perf_counter() - begin) / len(observations) * 1e6)
    return times


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400, help="in each block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, env, sb3, settings in (
            ("CartPole, PPO", "CartPole-v1", "MlpPolicy", {}),
            ("CartPole, PPO with LSTM of 128", "CartPole-v1", None, {"core": "lstm"}),
            ("Dict of two vectors, PPO", TwoParts, "MultiInputPolicy", {}),
        ):
            made = gymnasium.make(env) if isinstance(env, str) else env()
            made.observation_space.seed(1)
            calls = {"redline": ours(env, folder, **settings)}
            if sb3 is not None:
                calls["stable-baselines3"] = theirs(sb3, made)
            obs, _ = made.reset(seed=1)
            observations = [obs]
            while len(observations) < options.calls:
                obs, *_, truncated, _ = made.step(made.action_space.sample())
                observations.append(obs if not truncated else made.reset()[0])
            results[title] = alternated(calls, observations, options.blocks)
    write(results, options)


def write(results: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    """Print the table and write both files."""
    lines = ["| policy | Redline, us | Stable-Baselines3, us |", "|---|---|---|"]
    for title, times in results.items():
        shown = []
        for name in ("redline", "stable-baselines3"):
            part = sorted(times.get(name, []))
            cell = (
                f"{statistics.median(part):.0f} ({part[0]:.0f} to {part[-1]:.0f})" if part else ""
            )
            shown.append(cell)
        lines.append(f"| {title} | {shown[0]} | {shown[1]} |")
    table = "\n".join(lines)
    print(table)
    about = (
        "# Time of one predict call\n\nMedian over blocks, smallest to largest in brackets. "
        f"{options.blocks} blocks of {options.calls} calls, one thread:\n"
        "`python -m benchmarks.serving`.\n\n"
    )
    (RESULTS / "serving.md").write_text(f"{about}{table}\n\n{as_markdown()}")
    (RESULTS / "serving.json").write_text(
        json.dumps({"machine": describe(), "us_per_call": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
