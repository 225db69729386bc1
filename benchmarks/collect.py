"""What collecting costs on top of the environments themselves.

    python -m benchmarks.collect --pairs 9

Alternating pairs in one run: a bare loop over the raw vector environment, then the serial
collector with a policy that costs nothing (it hands out random actions drawn beforehand, the
same that the bare loop takes). And workers: the same collection with one worker and with two.
Reports env_steps per second and the median of the pairs' ratios, and writes
benchmarks/results/collect.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import as_markdown, describe
from redline.collect import SerialCollector, WorkersCollector
from redline.data import Rollout
from redline.envs import EnvSettings
from redline.policies import make_policy
from redline.policies.policy import ActionEvaluation, ActOutput, Policy, State

RESULTS = Path(__file__).parent / "results"
ACTIONS = 256  # drawn beforehand, used in turn


class FreePolicy(Policy):
    """Hands out actions drawn beforehand: acting costs next to nothing."""

    noise_size = 0
    is_recurrent = False
    extras_spec: ClassVar[dict[str, tuple[int, ...]]] = {}

    def __init__(self, actions: np.ndarray) -> None:
        super().__init__()
        self._actions = itertools.cycle(torch.from_numpy(actions).unbind(0))

    def initial_state(self, batch_size: int) -> State:
        """None is needed."""
        return {}

    def draw_noise(self, rng: np.random.Generator, length: int) -> Any:
        """None is needed."""
        return np.zeros((length, 0), np.float32)

    def act(self, obs: Any, state: State, noise: Any = None, conditioning: Any = None) -> ActOutput:
        """The next of the actions."""
        return ActOutput(next(self._actions), {}, {})

    def value(self, obs: Any, state: State, conditioning: Any = None) -> Tensor:
        """Zero."""
        return torch.zeros(len(obs))

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """Not asked for."""
        raise NotImplementedError


def draw_actions(space: gymnasium.Space[Any], num_envs: int) -> np.ndarray:
    """[ACTIONS, B, ...] random actions."""
    batched = gymnasium.vector.utils.batch_space(space, num_envs)
    batched.seed(0)
    return np.stack([batched.sample() for _ in range(ACTIONS)])


def raw_gymnasium(env_id: str, num_envs: int) -> Any:
    """Gymnasium's own vector environment in this process."""
    return gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")


def raw_envpool(env_id: str, num_envs: int) -> Any:
    """EnvPool's own Gymnasium interface."""
    import envpool

    return envpool.make_gymnasium(env_id, num_envs=num_envs, seed=0)


def bare_loop(env: Any, actions: np.ndarray, steps: int) -> float:
    """env_steps per second of a loop that does nothing but step."""
    started = time.perf_counter()
    for t in range(steps):
        env.step(actions[t % ACTIONS])
    return steps * actions.shape[1] / (time.perf_counter() - started)


def collecting(collector: Any, rollouts: int) -> float:
    """env_steps per second of a collector, filler steps counted as the bare loop counts them."""
    started = time.perf_counter()
    for _ in range(rollouts):
        collector.collect()
    steps = rollouts * collector.rollout_length * collector.num_envs
    return steps / (time.perf_counter() - started)


def compare(name: str, first: Callable[[], float], second: Callable[[], float], pairs: int) -> Any:
    """Alternating pairs after one of each that does not count."""
    first(), second()
    rows = [(first(), second()) for _ in range(pairs)]
    ratios = [b / a for a, b in rows]
    result = {
        "name": name,
        "pairs": pairs,
        "first_sps": statistics.median(a for a, _ in rows),
        "second_sps": statistics.median(b for _, b in rows),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    print(
        f"{name}: {result['first_sps']:,.0f} -> {result['second_sps']:,.0f} SPS, ratio "
        f"{result['ratio_median']:.3f} ({result['ratio_min']:.3f} .. {result['ratio_max']:.3f})",
        flush=True,
    )
    return result


def serial_against_raw(env_id: str, num_envs: int, backend: str, seconds: float, pairs: int) -> Any:
    """The raw vector environment in a bare loop, and the serial collector around ours."""
    make_raw = raw_envpool if backend == "envpool" else raw_gymnasium
    raw = make_raw(env_id, num_envs)
    raw.reset()
    actions = draw_actions(raw.single_action_space, num_envs)
    length = 128
    with EnvSettings(env=env_id, backend=backend).make(num_envs) as env:
        carried = actions.astype(env.action_space.dtype)
        collector = SerialCollector(env, FreePolicy(carried), rollout_length=length)
        rollouts = max(1, round(seconds * bare_loop(raw, actions, 200) / (num_envs * length)))
        return compare(
            f"{env_id}, {num_envs} envs, {backend}: raw -> serial collector",
            lambda: bare_loop(raw, actions, rollouts * length),
            lambda: collecting(collector, rollouts),
            pairs,
        )


def two_workers_against_one(env_id: str, num_envs: int, seconds: float, pairs: int) -> Any:
    """The same collection, policy included, with one worker process and with two."""
    settings = EnvSettings(env=env_id)
    with settings.make(1) as env:
        policy = make_policy(env.observation_space, env.action_space, normalize_obs=True)
    made = [
        WorkersCollector(
            settings, policy, num_envs=num_envs, num_workers=workers, rollout_length=128
        )
        for workers in (1, 2)
    ]
    one, two = made
    rollouts = max(1, round(seconds * collecting(one, 2) / (num_envs * 128)))
    try:
        return compare(
            f"{env_id}, {num_envs} envs: one worker -> two workers",
            lambda: collecting(one, rollouts),
            lambda: collecting(two, rollouts),
            pairs,
        )
    finally:
        one.close()
        two.close()


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement, about")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        serial_against_raw("HalfCheetah-v5", 64, "envpool", options.seconds, options.pairs),
        serial_against_raw("CartPole-v1", 8, "gymnasium", options.seconds, options.pairs),
        two_workers_against_one("HalfCheetah-v5", 16, options.seconds, options.pairs),
    ]
    RESULTS.mkdir(exist_ok=True)
    rows = "".join(
        f"| {r['name']} | {r['first_sps']:,.0f} | {r['second_sps']:,.0f} | "
        f"{r['ratio_median']:.3f} | {r['ratio_min']:.3f} .. {r['ratio_max']:.3f} |\n"
        for r in results
    )
    text = (
        "# Collecting\n\n```bash\npython -m benchmarks.collect "
        f"--pairs {options.pairs} --seconds {options.seconds:g}\n```\n\nMedians of "
        f"{options.pairs} alternating pairs, env_steps per second.\n\n"
        "| | first | second | ratio | range |\n|---|---|---|---|---|\n"
        f"{rows}\n{as_markdown()}"
    )
    (RESULTS / "collect.md").write_text(text)
    (RESULTS / "collect.json").write_text(
        json.dumps({"machine": describe(), "results": results}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
