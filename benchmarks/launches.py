"""What the host has to do for a device, counted without one: launches, waits and bytes copied.

    python -m benchmarks.launches
    python -m benchmarks.launches --workloads sac,dqn --modes eager,cudagraph
    python -m benchmarks.launches --cleanrl ../cleanrl --leanrl ../LeanRL --packages ../older

A GPU runs a small network's kernels in less time than the host takes to launch them, so the number
of launches is what its user waits for. Each workload trains on the stand-in accelerator
(`tests/accelerator`) in whole runs, and the last iteration is counted in three parts: collection,
taking its rows into replay, and learning (draws, updates, priorities, sums of metrics). Every
operator with a kernel is one launch, a captured graph is one, a copy is one.

Scripts of CleanRL and LeanRL are counted where their checkouts are given: as they are, but for the
device, over whole runs of two lengths, of which the difference is taken
(`benchmarks/launches_of_peers.py`).

What torch.compile would fuse cannot be counted here: its compiler knows no stand-in.
Results go to benchmarks/results/launches.md and .json after each row, in place of earlier ones
of the same name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.accelerator import emulated_graph, stand_in

import redline
from benchmarks.launches_of_peers import PEERS, PeerScript, per_env_step
from benchmarks.machine import as_markdown, describe
from benchmarks.workloads import WORKLOADS
from redline.collect import Collector
from redline.replay import Replay
from redline.train.loops.off_policy_loop import OffPolicyLoop
from redline.train.loops.on_policy_loop import OnPolicyLoop

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

    launches: int = 0
    waits: int = 0
    copied_bytes: int = 0

    def without(self, other: Counts) -> Counts:
        """What is left of a call when one inside of it is left out."""
        return Counts(
            self.launches - other.launches,
            self.waits - other.waits,
            self.copied_bytes - other.copied_bytes,
        )


def counted(function: Callable[..., Any], into: list[Counts]) -> Callable[..., Any]:
    """The same function, whose calls are counted one by one, with those inside of them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        device = stand_in.device
        before = device.num_launches(), len(device.read_backs), device.copied_bytes
        result = function(*args, **kwargs)
        into.append(
            Counts(
                device.num_launches() - before[0],
                len(device.read_backs) - before[1],
                device.copied_bytes - before[2],
            )
        )
        return result

    return call


def measure(name: str, mode: str, **changes: Any) -> dict[str, Any]:
    """Counts of the last iteration of one run.

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
    found: dict[str, list[Counts]] = {"collect": [], "learn": [], "add": []}
    made: list[int] = []
    kind: Any = OffPolicyLoop if "replay_size" in settings else OnPolicyLoop
    make = OffPolicyLoop._make

    def count_updates(loop: OffPolicyLoop, updates: int) -> None:
        made.append(updates)
        make(loop, updates)

    with (
        emulated_graph.installed(),
        stand_in.counted(),
        tempfile.TemporaryDirectory() as out,
        mock.patch.object(Collector, "collect", counted(Collector.collect, found["collect"])),
        mock.patch.object(kind, "_learn", counted(kind._learn, found["learn"])),
        mock.patch.object(Replay, "add", counted(Replay.add, found["add"])),
        mock.patch.object(OffPolicyLoop, "_make", count_updates),
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
    collect, learn = found["collect"][-1], found["learn"][-1]
    add = found["add"][-1] if found["add"] else Counts()
    learn, updates = learn.without(add), made[-1] if made else 1
    return {
        "workload": name,
        "mode": mode,
        "env_steps": steps,
        "updates": updates,
        "collect": asdict(collect),
        "add": asdict(add),
        "learn": asdict(learn),
        "launches_per_update": learn.launches / updates,
        "launches_per_env_step": (collect.launches + add.launches + learn.launches) / steps,
        "waits_per_env_step": (collect.waits + add.waits + learn.waits) / steps,
    }


def measure_peer(script: PeerScript, root: Path, packages: Sequence[Path] = ()) -> dict[str, Any]:
    """Counts of another project's script, or why there are none.

    Args:
        script: of a project.
        root: of its checkout.
        packages: folders of packages that it sees before the installed ones.
    """
    file = root / script.file
    counts = per_env_step(file, script.lengths, script.options, [*packages, root])
    if "failed" not in counts:
        per_update = counts["launches_to_learn"] * script.env_steps_per_update
        counts["launches_per_update"] = per_update
    return {"script": script.label} | counts


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | mode | env_steps | updates | launches to collect | to add | to learn "
        "| waits to learn | bytes copied to learn | launches per env_step | waits per env_step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['workload']} | {row['mode']} | {row['env_steps']:,} | {row['updates']} | "
        f"{row['collect']['launches']:,} | {row['add']['launches']} | "
        f"{row['learn']['launches']:,} | {row['learn']['waits']} | "
        f"{row['learn']['copied_bytes']:,} | {row['launches_per_env_step']:,.2f} | "
        f"{row['waits_per_env_step']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def peer_table(rows: list[dict[str, Any]]) -> str:
    """What was counted of other projects' scripts, as Markdown; "" if nothing was."""
    if not rows:
        return ""
    lines = [
        "| script | launches to learn, per update | launches per env_step | waits per env_step |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['script']} | {row['failed']} | | |"
        if "failed" in row
        else f"| {row['script']} | {row['launches_per_update']:,.2f} | {row['launches']:,.2f} | "
        f"{row['waits']:.2f} |"
        for row in rows
    ]
    about = (
        "\nOther projects' scripts. To learn is what their main programs do below the comment that "
        "marks it;\nof PPO it is a whole iteration. GAE stands above it, and in LeanRL's SAC and "
        "TD3 the draw from replay.\n\n"
    )
    return about + "\n".join(lines) + "\n"


def write(
    rows: list[dict[str, Any]], results: Path = RESULTS, peers: list[dict[str, Any]] | None = None
) -> None:
    """Record the counts, and what they were counted on."""
    text = (
        "# Launches of the host, counted on a stand-in accelerator\n\n"
        "Made by `python -m benchmarks.launches`: the last iteration of a run. To learn is to draw "
        "from replay,\nto update and to sum metrics; of PPO it is a whole iteration's update. On "
        "HalfCheetah that has 4\nminibatches in place of 32: eager, a whole one launches eight "
        "times as much.\n\n"
    )
    results.mkdir(parents=True, exist_ok=True)
    tables = table(rows) + peer_table(peers or [])
    (results / "launches.md").write_text(text + tables + "\n" + as_markdown())
    found = {"machine": describe(), "rows": rows, "peers": peers or []}
    (results / "launches.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Count and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--modes", default=",".join(MODES), help='"" for none')
    parser.add_argument("--again", action="store_true", help="forget earlier results first")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", metavar="PATH", help=f"a checkout of {peer}")
    parser.add_argument(
        "--packages",
        metavar="DIR",
        help="older packages that those scripts see before the installed ones; "
        "benchmarks/launches_of_peers.py says how to make it",
    )
    options = parser.parse_args()
    rows, peers = ({}, {}) if options.again else recorded()
    workloads = options.workloads.split(",")
    for name in workloads:
        for mode in options.modes.split(",") if options.modes else ():
            row = rows[name, mode] = measure(name, mode)
            launches, updates = row["learn"]["launches"], row["updates"]
            print(f"{name} {mode}: {launches:,} launches for {updates} updates", file=sys.stderr)
            write(list(rows.values()), peers=list(peers.values()))
    for peer, scripts in PEERS.items():
        root = Path(getattr(options, peer) or "").resolve()
        packages = [Path(options.packages).resolve()] if options.packages else []
        for one in scripts if getattr(options, peer) else ():
            if one.workload in workloads:
                counts = measure_peer(one, root, packages)
                peers[one.label] = counts
                print(f"{one.label}: {counts}", file=sys.stderr)
                write(list(rows.values()), peers=list(peers.values()))
    print(table(list(rows.values())) + peer_table(list(peers.values())))


def recorded(results: Path = RESULTS) -> tuple[dict[Any, Any], dict[str, Any]]:
    """What earlier calls counted: (workload, mode) -> row, and script -> counts."""
    file = results / "launches.json"
    if not file.exists():
        return {}, {}
    found = json.loads(file.read_text())
    rows = {(row["workload"], row["mode"]): row for row in found["rows"] if "add" in row}
    peers = [row for row in found.get("peers", []) if {"failed", "launches_per_update"} & {*row}]
    return rows, {row["script"]: row for row in peers}


if __name__ == "__main__":
    main()
