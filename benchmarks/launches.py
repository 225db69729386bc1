"""What the host has to do for a device, counted without one: launches, waits and bytes copied.

    python -m benchmarks.launches
    python -m benchmarks.launches --workloads sac,dqn --modes eager,cudagraph

A GPU runs a small network's kernels in less time than the host takes to launch them, so the number
of launches is what its user waits for. Each workload trains on the stand-in accelerator
(`tests/accelerator`) in whole runs, and what the last iteration's updates and collection did is
counted: every operator with a kernel is one launch, a captured graph is one, a copy is one.

What torch.compile would fuse cannot be counted here: its compiler knows no stand-in.
Results go to benchmarks/results/launches.md and .json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.accelerator import emulated_graph, stand_in

import redline
from benchmarks.machine import as_markdown, describe
from benchmarks.workloads import WORKLOADS
from redline.collect import Collector
from redline.train.loops.loop import TrainLoop

RESULTS = Path(__file__).parent / "results"
MODES = ("eager", "cudagraph")
# Enough for every kind of update to have been captured and compared, and one more.
_ENV_STEPS = {
    "sac": 320,
    "td3": 320,
    "dqn": 700,
    "ppo-continuous": 3 * 256,
    "ppo-atari": 3 * 1024,
}
_SHORTER: dict[str, dict[str, Any]] = {
    "dqn": {"learning_starts": 100},
    # An iteration of 2048 steps would record 320 minibatches of one graph for the same counts.
    "ppo-continuous": {"rollout_length": 256, "num_minibatches": 4},
}


@dataclass
class Counts:
    """Of one call.

    Attributes:
        launches: kernels, graphs and copies that the host launched.
        waits: times it waited for the device.
        copied_bytes: to the device and back.
    """

    launches: int
    waits: int
    copied_bytes: int


def counted(function: Callable[..., Any], into: list[Counts]) -> Callable[..., Any]:
    """The same function, whose calls are counted one by one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with stand_in.counted() as device:
            result = function(*args, **kwargs)
            into.append(Counts(device.num_launches(), len(device.read_backs), device.copied_bytes))
        return result

    return call


def measure(name: str, mode: str, **changes: Any) -> dict[str, Any]:
    """Counts of the last update and, per env_step, of the last collection of one run.

    Args:
        name: of a workload.
        mode: one of `MODES`.
        changes: to its settings.
    """
    workload = WORKLOADS[name]
    settings = workload.settings | _SHORTER.get(name, {})
    if "replay_size" in settings:
        settings |= {"replay_storage": "device", "replay_size": 10_000}
    settings |= changes
    updates: list[Counts] = []
    collections: list[Counts] = []
    with (
        emulated_graph.installed(),
        tempfile.TemporaryDirectory() as out,
        mock.patch.object(TrainLoop, "_updated", counted(TrainLoop._updated, updates)),
        mock.patch.object(Collector, "collect", counted(Collector.collect, collections)),
    ):
        run = redline.train(
            workload.algorithm,
            out=Path(out) / "run",
            device=stand_in.NAME,
            accelerate=mode,
            **{"total_env_steps": _ENV_STEPS[name], "tensorboard": False, "quiet": True,
               "checkpoints": "none", "num_threads": 1, "tune_process": False} | settings,
        )  # fmt: skip
        algo: Any = run.config.algo
    steps = algo.num_envs * algo.rollout_length
    last = collections[-1]
    return {
        "workload": name,
        "mode": mode,
        "update": asdict(updates[-1]),
        "launches_per_env_step": last.launches / steps,
        "waits_per_env_step": last.waits / steps,
        "bytes_per_env_step": last.copied_bytes / steps,
        "env_steps": steps,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | mode | launches per update | waits per update | bytes copied per update "
        "| launches per env_step | waits per env_step |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['workload']} | {row['mode']} | {row['update']['launches']:,} | "
        f"{row['update']['waits']} | {row['update']['copied_bytes']:,} | "
        f"{row['launches_per_env_step']:.2f} | {row['waits_per_env_step']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def write(rows: list[dict[str, Any]], results: Path = RESULTS) -> None:
    """Record the counts, and what they were counted on."""
    text = (
        "# Launches of the host, counted on a stand-in accelerator\n\n"
        "Made by `python -m benchmarks.launches`. An update of PPO is a whole iteration's, of the "
        "others one batch's.\nPPO's on HalfCheetah is of 4 minibatches in place of 32: eager, a "
        "whole one launches eight times as much.\n\n"
    )
    results.mkdir(parents=True, exist_ok=True)
    (results / "launches.md").write_text(text + table(rows) + "\n" + as_markdown())
    found = {"machine": describe(), "rows": rows}
    (results / "launches.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Count and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    rows = []
    for name in options.workloads.split(","):
        for mode in options.modes.split(","):
            rows.append(measure(name, mode))
            print(
                f"{name} {mode}: {rows[-1]['update']['launches']:,} launches per update",
                file=sys.stderr,
            )
    write(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
