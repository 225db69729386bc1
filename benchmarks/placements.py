"""What each placement of stepping and acting is worth, beside the environments themselves.

    python -m benchmarks.placements --pairs 7

Alternating pairs in one run, env_steps per second:

- an environment that takes 1 ms of processor time per step: the bare environment in one
  process, then the synchronous collectors against the serial one;
- the same where acting costs 1 ms of processor time per environment, too: alternating against
  central;
- whole SAC runs, asynchronous against synchronous at the same replay ratio;
- CartPole with a policy of 64 units, 64 environments in one process, against a plain Python
  loop that acts for one environment after the other.

The millisecond is spun, not slept, and measured in the process's own processor time, so it
takes a core as a simulator does. Writes benchmarks/results/placements.md and .json.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import redline
from benchmarks.collect import FreePolicy, collecting, compare
from benchmarks.machine import as_markdown, describe
from benchmarks.records import recorded, require_one_machine
from redline.collect import (
    AlternatingCollector,
    CentralCollector,
    Collector,
    SerialCollector,
    WorkersCollector,
)
from redline.envs import EnvSettings
from redline.policies import make_policy
from redline.policies.policy import ActOutput, State

RESULTS = Path(__file__).parent / "results"
STEP_S = 1e-3
NUM_ENVS, LENGTH = 8, 16


def spin(seconds: float) -> None:
    """Use a core for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes a millisecond more."""

    def step(self, action: Any) -> Any:
        """Spin, then step."""
        spin(STEP_S)
        return self.env.step(action)


def slow_cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole of a millisecond."""
    return Slow(gymnasium.make("CartPole-v1", disable_env_checker=True))


def slow_pendulum() -> gymnasium.Env[Any, Any]:
    """Pendulum of a millisecond."""
    return Slow(gymnasium.make("Pendulum-v1", disable_env_checker=True))


class CostlyPolicy(FreePolicy):
    """Acting takes a millisecond per environment."""

    def __init__(self) -> None:
        super().__init__(np.ones((1, 1), np.int64))

    def act(self, obs: Any, state: State, noise: Any = None, conditioning: Any = None) -> ActOutput:
        """Push to the right."""
        spin(STEP_S * len(obs))
        return ActOutput(torch.ones(len(obs), dtype=torch.int64), {}, {})

    def value(self, obs: Any, state: State, conditioning: Any = None) -> Tensor:
        """Zero."""
        return torch.zeros(len(obs))


def bare(env: gymnasium.Env[Any, Any], steps: int) -> float:
    """env_steps per second of one environment in a bare loop."""
    env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(1)
        if terminated or truncated:
            env.reset()
    return steps / (time.perf_counter() - started)


def in_processes(kind: Any, settings: EnvSettings, policy: Any, **further: Any) -> Collector:
    """A collector with two workers."""
    return kind(
        settings, policy, num_envs=NUM_ENVS, num_workers=2, rollout_length=LENGTH, **further
    )


def pair(name: str, first: Any, second: Any, pairs: int, rollouts: int) -> Any:
    """Two collectors side by side, closed afterwards."""
    with first, second:
        return compare(
            name,
            lambda: collecting(first, rollouts),
            lambda: collecting(second, rollouts),
            pairs,
        )


def of_a_millisecond(pairs: int) -> list[Any]:
    """Every synchronous collector against the serial one, and that against the bare environment."""
    settings = EnvSettings(env=slow_cartpole)
    with settings.make(1) as env:
        policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(64, 64))

    def serial() -> SerialCollector:
        return SerialCollector(settings.make(NUM_ENVS), policy, rollout_length=LENGTH)

    raw = slow_cartpole()
    with serial() as collector:
        results = [
            compare(
                "1 ms per step: bare environment -> serial",
                lambda: bare(raw, 2 * NUM_ENVS * LENGTH),
                lambda: collecting(collector, 2),
                pairs,
            )
        ]
    kinds = {
        "central": CentralCollector,
        "alternating": AlternatingCollector,
        "workers": WorkersCollector,
    }
    for name, kind in kinds.items():
        second = in_processes(kind, settings, policy)
        results.append(pair(f"1 ms per step: serial -> {name}", serial(), second, pairs, 3))
    return results


def acting_as_costly(pairs: int) -> list[Any]:
    """Alternating against central, with and without overlap of the groups' steps."""
    settings = EnvSettings(env=slow_cartpole)
    return [
        pair(
            f"1 ms per step and per action: central -> alternating{name}",
            in_processes(CentralCollector, settings, CostlyPolicy()),
            in_processes(AlternatingCollector, settings, CostlyPolicy(), overlap=overlap),
            pairs,
            3,
        )
        for name, overlap in (("", True), (" without overlap", False))
    ]


def sac_sps(collector: str, env: Any, env_steps: int, settings: dict[str, Any]) -> float:
    """env_steps per second of a SAC run once it learns, by its own rows."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        redline.train(
            "sac",
            env=env,
            out=out,
            collector=collector,
            total_env_steps=env_steps,
            log_interval=env_steps // 4,
            checkpoints="none",
            tensorboard=False,
            quiet=True,
            **settings,
            **({} if collector == "serial" else {"num_workers": 1}),
        )
        with (out / "progress.csv").open() as file:
            rows = list(csv.DictReader(file))
    first, last = rows[0], rows[-1]
    steps = float(last["env_steps"]) - float(first["env_steps"])
    return steps / (float(last["wall_time_s"]) - float(first["wall_time_s"]))


def async_sac(pairs: int) -> list[Any]:
    """Whole runs with one thread each for learning and collecting."""
    equal = {"num_envs": 4, "rollout_length": 1, "learning_starts": 100, "num_threads": 1}
    cases: list[tuple[str, Any, int, dict[str, Any]]] = [
        (
            "SAC, Pendulum of 1 ms per step, replay ratio 64",
            slow_pendulum,
            1200,
            {"replay_ratio": 64.0},
        ),
        ("SAC, HalfCheetah-v5, replay ratio 256", "HalfCheetah-v5", 1200, {"replay_ratio": 256.0}),
    ]
    return [
        compare(
            f"{name}: serial -> async",
            lambda env=env, steps=steps, own=own: sac_sps("serial", env, steps, equal | own),
            lambda env=env, steps=steps, own=own: sac_sps("async", env, steps, equal | own),
            pairs,
        )
        for name, env, steps, own in cases
    ]


def plain_loop(network: nn.Module, num_envs: int, steps: int) -> float:
    """env_steps per second of a loop that acts for one environment after the other."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(num_envs)]
    obs = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    started = time.perf_counter()
    with torch.no_grad():
        for _ in range(steps):
            for i, env in enumerate(envs):
                logits = network(torch.as_tensor(obs[i]).unsqueeze(0))
                action = torch.distributions.Categorical(logits=logits).sample()
                obs[i], _, terminated, truncated, _ = env.step(int(action))
                if terminated or truncated:
                    obs[i], _ = env.reset()
    return num_envs * steps / (time.perf_counter() - started)


def many_small(pairs: int) -> list[Any]:
    """64 environments of CartPole in one process."""
    settings = EnvSettings(env="CartPole-v1")
    with settings.make(1) as env:
        policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(64,))
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    with SerialCollector(settings.make(64), policy, rollout_length=64) as collector:
        return [
            compare(
                "CartPole-v1, 64 units, 64 envs, 1 process: plain Python loop -> serial",
                lambda: plain_loop(network, 64, 32),
                lambda: collecting(collector, 4),
                pairs,
            )
        ]


CASES: dict[str, Callable[[int], list[Any]]] = {
    "millisecond": of_a_millisecond,
    "acting": acting_as_costly,
    "sac": async_sac,
    "small": many_small,
}


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "placements.json"
    # A case that is measured alone takes its place among the others.
    cases = recorded(path).get("cases", {})
    require_one_machine(path, {*cases} - {*options.case}, describe())
    for name in options.case:
        cases[name] = CASES[name](options.pairs)
    results = [result for name in CASES for result in cases.get(name, [])]
    rows = "".join(
        f"| {r['name']} | {r['pairs']} | {r['first_sps']:,.0f} | {r['second_sps']:,.0f} | "
        f"{r['ratio_median']:.2f} | {r['ratio_min']:.2f} .. {r['ratio_max']:.2f} |\n"
        for r in results
    )
    text = (
        f"# Placements\n\n```bash\npython -m benchmarks.placements --pairs {options.pairs}\n```\n\n"
        "Medians of alternating pairs, env_steps per second; collectors other than serial have "
        f"two workers, {NUM_ENVS} environments and rollouts of {LENGTH} steps; the SAC runs one "
        "worker, 4 environments and one thread for learning.\n\n"
        "| | pairs | first | second | ratio | range |\n|---|---|---|---|---|---|\n"
        f"{rows}\n{as_markdown()}"
    )
    (RESULTS / "placements.md").write_text(text)
    path.write_text(json.dumps({"machine": describe(), "cases": cases}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
