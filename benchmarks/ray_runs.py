"""Ray: actors beside worker processes, a killed actor, and a sweep that loses a node.

    python -m benchmarks.ray_runs                          # all parts
    python -m benchmarks.ray_runs --part speed --rounds 5

| part | shows |
|---|---|
| speed | env_steps per second of `workers`, `async` and `ray` with 2 workers, alternating |
| learning | APPO on CartPole, five seeds, evaluated over 20 episodes, each beside `async` |
| kill | an actor is killed with -9 in the middle of a run |
| nodes | a sweep on three simulated nodes, of which one is removed in the middle |

Each run is a `redline train` of its own. Writes benchmarks/results/ray.json and ray.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.records import merged, recorded, require_one_machine

RESULTS = Path(__file__).parent / "results" / "ray.json"
RUN = (
    *("appo", "--env", "CartPole-v1", "--num-workers", "2"),
    *("--num-threads", "1", "--no-tensorboard", "--quiet"),
)
COLLECTORS = ("workers", "async", "ray")


def train(out: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a run."""
    return subprocess.Popen(
        [sys.executable, "-m", "redline", "train", *RUN, "--out", str(out), *options]
    )


def finished(process: subprocess.Popen[bytes]) -> None:
    """Wait for a run.

    Raises:
        SystemExit: if it failed.
    """
    if process.wait():
        raise SystemExit(f"a run ended with {process.returncode}")


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of progress.csv."""
    with (run / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def sps(run: Path) -> float:
    """env_steps per second from the first row on, so without the start."""
    first, last = rows(run)[0], rows(run)[-1]
    steps = int(last["env_steps"]) - int(first["env_steps"])
    return steps / (float(last["wall_time_s"]) - float(first["wall_time_s"]))


def speed(folder: Path, rounds: int) -> dict[str, Any]:
    """Median SPS of each collector over runs that take turns."""
    found: dict[str, list[float]] = {name: [] for name in COLLECTORS}
    for number in range(rounds):
        for name in COLLECTORS if number % 2 == 0 else COLLECTORS[::-1]:
            out = folder / f"{name}-{number}"
            finished(train(out, "--collector", name, "--total-env-steps", "40000"))
            found[name].append(sps(out))
    medians = {name: statistics.median(each) for name, each in found.items()}
    return {
        "rounds": rounds,
        "sps": {name: [round(each) for each in every] for name, every in found.items()},
        "median_sps": {name: round(each) for name, each in medians.items()},
        "ray_over_async": round(medians["ray"] / medians["async"], 3),
        "ray_over_workers": round(medians["ray"] / medians["workers"], 3),
    }


def learning(folder: Path, seeds: Sequence[int], env_steps: int) -> dict[str, Any]:
    """Mean return of 20 evaluation episodes of each seed, with `ray` and with `async`.

    The same seed makes the same rollouts in both, so they must end with the same parameters.
    Each seed is recorded as soon as it is there, beside those of earlier calls.
    """
    steps = ("--total-env-steps", str(env_steps))
    found = recorded(RESULTS).get("learning", {})
    if found.get("env_steps") != env_steps or "async" not in found:
        found = {"env_steps": env_steps, "ray": {}, "async": {}, "params_equal": {}}
    for seed in seeds:
        outs = {name: folder / f"{name}-{seed}" for name in ("ray", "async")}
        for name, out in outs.items():
            finished(train(out, "--collector", name, "--seed", str(seed), *steps))
            found[name][str(seed)] = evaluated(out)
            print(name, seed, found[name][str(seed)], flush=True)
        found["params_equal"][str(seed)] = hashed(outs["ray"]) == hashed(outs["async"])
        merged(RESULTS, {"machine": describe(), "learning": found})
    return dict(found)


def hashed(run: Path) -> str:
    """params_sha256."""
    return str(printed("inspect", str(run))["params_sha256"])


def evaluated(run: Path) -> float:
    """Mean return of 20 episodes."""
    return float(printed("eval", str(run), "--episodes", "20")["return_mean"])


def printed(*arguments: str) -> dict[str, Any]:
    """What a command of redline prints last."""
    text = subprocess.run(
        [sys.executable, "-m", "redline", *arguments], check=True, capture_output=True, text=True
    ).stdout
    return dict(json.loads(text.strip().splitlines()[-1]))


def actors() -> list[int]:
    """Processes of acting actors on this machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes().startswith(b"ray::ActingActor"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill(folder: Path) -> dict[str, Any]:
    """A run one of whose actors is killed once the first rows are written."""
    out = folder / "run"
    process = train(out, "--collector", "ray", "--total-env-steps", "60000")
    wait_until(lambda: (out / "progress.csv").exists() and len(rows(out)) > 10)
    before = int(rows(out)[-1]["env_steps"])
    os.kill(actors()[0], signal.SIGKILL)
    finished(process)
    last = rows(out)[-1]
    return {
        "killed_after_env_steps": before,
        "env_steps": int(last["env_steps"]),
        "workers_replaced": float(last["workers_replaced"]),
        "return_mean": float(last["return_mean"]),
    }


def wait_until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Wait for a condition.

    Raises:
        SystemExit: if it does not come.
    """
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"nothing came within {limit_s:g} s")
        time.sleep(0.05)


def nodes(folder: Path) -> dict[str, Any]:
    """A sweep of six runs on three nodes of one CPU; one is removed once all have checkpoints."""
    import ray
    from ray.cluster_utils import Cluster

    import redline
    from redline.launch.state import SweepState

    store = 80 * 2**20
    head = {"num_cpus": 1, "object_store_memory": store, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    lost, _ = (cluster.add_node(num_cpus=1, object_store_memory=store) for _ in range(2))

    def lose() -> None:
        wait_until(lambda: len({p.parts[-3] for p in folder.glob("runs/*/checkpoints/*")}) >= 3)
        cluster.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        done = redline.sweep(
            algorithm="ppo",
            base={
                "env": "CartPole-v1",
                "total_env_steps": 20_000,
                "checkpoint_interval": 1_000,
                "tensorboard": False,
            },
            grid={"learning_rate": [1e-3, 3e-4]},
            seeds=3,
            out=folder,
            on="ray",
            address=cluster.address,
        )
        thread.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    with SweepState(folder) as state:
        counts = state.counts()
    histories = [path.read_text() for path in folder.glob("runs/*/history.jsonl")]
    return {
        "exit_code": done.exit_code,
        "counts": counts,
        "resumed_elsewhere": sum("resumed" in text for text in histories),
    }


def page(found: dict[str, Any]) -> str:
    """The results for people."""
    lines = ["# Ray", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in found["machine"].items()]
    lines.append("")
    if "speed" in found:
        medians = found["speed"]["median_sps"]
        lines += ["| collector | SPS, median |", "|---|---|"]
        lines += [f"| `{name}` | {each:,} |" for name, each in medians.items()]
        lines += [
            "",
            f"APPO on CartPole, 2 workers, {found['speed']['rounds']} rounds in turn: `ray` makes "
            f"{found['speed']['ray_over_async']:.2f} of `async`'s SPS and "
            f"{found['speed']['ray_over_workers']:.2f} of `workers`'.",
            "",
        ]
    if "learning" in found:
        part = found["learning"]
        lines += ["| seed | `ray` | `async` | parameters |", "|---|---|---|---|"]
        for seed, value in part["ray"].items():
            equal = "equal" if part["params_equal"][seed] else "other"
            lines.append(f"| {seed} | {value:.0f} | {part['async'][seed]:.0f} | {equal} |")
        lines += [
            "",
            f"APPO on CartPole after {part['env_steps']:,} env_steps: returns of 20 evaluation "
            "episodes.",
            "",
        ]
    if "kill" in found:
        part = found["kill"]
        lines += [
            f"An actor killed with -9 after {part['killed_after_env_steps']:,} env_steps: "
            f"{part['workers_replaced']:.0f} replaced, the run ended whole at "
            f"{part['env_steps']:,} with return {part['return_mean']:.0f}.",
            "",
        ]
    if "nodes" in found:
        part = found["nodes"]
        lines += [
            f"Three simulated nodes, six runs, one node removed in the middle: "
            f"{part['counts']['done']} done, {part['counts']['failed']} failed, "
            f"{part['resumed_elsewhere']} went on elsewhere from a checkpoint.",
            "",
        ]
    return "\n".join([*lines, "    python -m benchmarks.ray_runs", ""])


def main() -> int:
    """Measure the parts that were asked for, and record them beside the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = ("speed", "learning", "kill", "nodes")
    parser.add_argument("--part", nargs="+", default=every, choices=every)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--env-steps", type=int, default=60_000, help="of the learning runs")
    options = parser.parse_args()
    measure: dict[str, Callable[[Path], dict[str, Any]]] = {
        "speed": lambda folder: speed(folder, options.rounds),
        "learning": lambda folder: learning(folder, options.seeds, options.env_steps),
        "kill": kill,
        "nodes": nodes,
    }
    kept = {*recorded(RESULTS)} - {"machine", *options.part}
    require_one_machine(RESULTS, kept, describe())
    for part in options.part:
        with tempfile.TemporaryDirectory() as folder:
            found = merged(RESULTS, {"machine": describe(), part: measure[part](Path(folder))})
        print(json.dumps(found[part], indent=2), flush=True)
        RESULTS.with_suffix(".md").write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
