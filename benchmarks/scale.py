"""Where is one learner saturated? From the measured cost per step, message and byte.

    python -m benchmarks.scale

All costs are processor seconds of one core and one thread. Measured are

- `collect`: stepping and acting, per env_step, in one actor;
- `learn`: IMPALA's update, per env_step, as `--accelerate auto` runs it;
- `message`: what an actor's answer of no size costs the learner, requests included;
- `byte`: what each further byte of an answer costs it: fetched and copied into the rollout.

A learner then spends `learn + bytes_per_step * byte + message / rows_per_message` on each env_step,
and more than one over that per second it cannot take in. Writes benchmarks/results/scale.json, .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from redline.algos.registry import find_algorithm
from redline.collect import SerialCollector
from redline.collect.buffer import RolloutBuffer
from redline.data import leaves
from redline.engines.acting import actor_for
from redline.engines.engine import choose_engine
from redline.envs import EnvSettings
from redline.envs.atari import is_atari
from redline.ray_cluster import connected_ray
from redline.train.presets import preset_config

RESULTS = Path(__file__).parent / "results" / "scale.json"
COLLECTORS = (10, 100, 1000)
_MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One environment.

    Attributes:
        env: its id.
        rollout_length: T.
        envs_each: environments of each actor.
        repeats: rollouts, and updates, of which the cheapest counts.
    """

    env: str
    rollout_length: int
    envs_each: int
    repeats: int


CASES = {
    "CartPole": Case("CartPole-v1", 64, 8, 30),
    "HalfCheetah": Case("HalfCheetah-v5", 64, 8, 30),
    "Atari (Pong)": Case("ALE/Pong-v5", 20, 8, 4),
}


def cheapest(action: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the cheapest of several calls: what others took is not in it."""
    action()
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        action()
        spent.append(time.process_time() - began)
    return min(spent)


def stepping(case: Case) -> tuple[float, float, int]:
    """Processor seconds of collecting and of learning, and bytes of a rollout, per env_step."""
    own = {"num_envs": case.envs_each, "rollout_length": case.rollout_length}
    config = preset_config("impala", case.env, "default").replace(**own)
    atari = config.run.atari_preset if is_atari(case.env) else None
    settings = EnvSettings(env=case.env, backend="gymnasium", preset=atari)
    envs = settings.make(case.envs_each)
    algorithm: Any = find_algorithm("impala").make(
        envs.observation_space,
        envs.action_space,
        config.algo,
        seed=1,
        device="cpu",
        **dataclasses.asdict(config.policy),
    )
    policy = algorithm.policy
    row = RolloutBuffer.create(
        1, 1, envs.observation_space, envs.action_space, policy.extras_spec
    ).fields
    # Last observations travel only where an episode ends.
    columns = (field for name, field in row.items() if name != "final_obs")
    nbytes = sum(leaf.nbytes for field in columns for _, leaf in leaves(field))
    engine = choose_engine(algorithm, "auto")
    steps = case.envs_each * case.rollout_length
    with SerialCollector(
        envs, policy, rollout_length=case.rollout_length, actor_for=actor_for
    ) as collector:
        collect_s = cheapest(collector.collect, case.repeats)
        rollout = collector.collect()
        learn_s = cheapest(lambda: engine.update(rollout), case.repeats)
    return collect_s / steps, learn_s / steps, nbytes


class Answers:
    """An actor that answers with as many bytes as it is asked for."""

    def answer(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Zeros."""
        return np.zeros(nbytes, np.uint8)


def messages() -> dict[str, float]:
    """Processor seconds of the learner per message and per byte, either way."""
    ray = connected_ray("this benchmark", address="local", num_cpus=2, store_bytes=400 * _MIB)
    actor: Any = ray.remote(num_cpus=1)(Answers).remote()
    rollout = np.zeros(4 * _MIB, np.uint8)

    def asked(nbytes: int, count: int) -> float:
        def ask() -> None:
            for ref in [actor.answer.remote(nbytes) for _ in range(20)]:
                np.copyto(rollout[:nbytes], ray.get(ref))

        return cheapest(ask, count // 20) / 20

    def put(nbytes: int, count: int) -> float:
        value = np.zeros(nbytes, np.uint8)
        return cheapest(lambda: [ray.put(value) for _ in range(10)], count // 10) / 10

    small, large = asked(1, 1000), asked(4 * _MIB, 100)
    put_small, put_large = put(1, 300), put(4 * _MIB, 100)
    ray.shutdown()
    return {
        "message_s": small,
        "byte_s": max(0.0, large - small) / (4 * _MIB),
        "put_s": put_small,
        "put_byte_s": max(0.0, put_large - put_small) / (4 * _MIB),
    }


def measured(case: Case, costs: dict[str, float]) -> dict[str, Any]:
    """Costs of one environment, and what follows for each number of collectors."""
    collect_s, learn_s, nbytes = stepping(case)
    rows = case.rollout_length * case.envs_each
    transfer_s = nbytes * costs["byte_s"] + costs["message_s"] / rows
    taken = 1 / (learn_s + transfer_s)
    return {
        "rollout_length": case.rollout_length,
        "envs_each": case.envs_each,
        "bytes_per_step": nbytes,
        "collect_us": collect_s * 1e6,
        "learn_us": learn_s * 1e6,
        "transfer_us": transfer_s * 1e6,
        "made_by_one": 1 / collect_s,
        "learner_takes": taken,
        "only_transfer": 1 / transfer_s,
        "saturated_by": taken * collect_s,
        "collectors": {
            str(number): {"made": number / collect_s, "learner_busy": number / collect_s / taken}
            for number in COLLECTORS
        },
    }


def page(found: dict[str, Any]) -> str:
    """The tables."""
    costs = found["costs"]
    lines = ["# Where one learner is saturated", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in found["machine"].items()]
    lines += [
        "",
        "Processor time of the learner through Ray:",
        "",
        f"- {costs['message_s'] * 1e6:.0f} us per answer of an actor, and "
        f"{costs['byte_s'] * 1e9 * 1024:.0f} ns per KiB;",
        f"- {costs['put_s'] * 1e6:.0f} us per version of the weights, and "
        f"{costs['put_byte_s'] * 1e9 * 1024:.0f} ns per KiB.",
        "",
        "IMPALA, microseconds per env_step, one core and one thread each:",
        "",
        "| | collect | learn | transfer | bytes per step | one collector makes, SPS | one learner "
        "takes, SPS | full with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in found["cases"].items():
        lines.append(
            f"| {name} | {each['collect_us']:.1f} | {each['learn_us']:.1f} | "
            f"{each['transfer_us']:.2f} | {each['bytes_per_step']:,} | "
            f"{each['made_by_one']:,.0f} | {each['learner_takes']:,.0f} | "
            f"{each['saturated_by']:.1f} collectors |"
        )
    numbers = [str(number) for number in COLLECTORS]
    lines += [
        "",
        "What the collectors make, as a multiple of what the learner takes (above 1 they wait), "
        "and of what it could take if learning cost nothing:",
        "",
        f"| | {' | '.join(f'{int(number):,} collectors' for number in numbers)} |",
        "|---" * (len(numbers) + 1) + "|",
    ]
    for name, each in found["cases"].items():
        cells = [
            f"{each['collectors'][number]['learner_busy']:.1f}; "
            f"{each['collectors'][number]['made'] / each['only_transfer']:.2f}"
            for number in numbers
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "    python -m benchmarks.scale", ""])


def main() -> int:
    """Measure and record."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    costs = messages()
    found: dict[str, Any] = {"machine": describe(), "costs": costs, "cases": {}}
    for name, case in CASES.items():
        found["cases"][name] = measured(case, costs)
        print(name, json.dumps(found["cases"][name], indent=2), flush=True)
        RESULTS.write_text(json.dumps(found, indent=2) + "\n")
        RESULTS.with_suffix(".md").write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
