"""What profiling costs, how true the corrected times are, and how fast sessions are analyzed.

    python -m benchmarks.profiler overhead --pairs 9 [--sb3-python PYTHON]
    python -m benchmarks.profiler bias --pairs 5 [--sb3-python PYTHON]
    python -m benchmarks.profiler sweep

| command | measures |
|---|---|
| `overhead` | wall and CPU time of whole programs, unprofiled, light and full in alternation |
| `bias` | corrected minus unprofiled time, of unprofiled time, by the same alternation |
| `sweep` | intervals per second on one core; analysis of 10 million events, end to end |

Workloads are Redline's own algorithms, a plain Gymnasium and torch program, and, where
`--sb3-python` names an interpreter that has it, Stable-Baselines3's PPO and SAC. Each writes
benchmarks/results/profiler/<command>.json and .md; `bias` also the list that
`redline report --bias` draws.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import as_markdown, describe
from redline.profile import layout, levels
from redline.profile.analyse.overlap import overlap
from redline.profile.analyse.summary import summarize
from redline.profile.record.files import create_session
from redline.profile.record.options import Options
from redline.profile.runner import run_profiled

RESULTS = Path(__file__).parent / "results" / "profiler"
PEERS = Path(__file__).parent / "peers"
MODES = ("unprofiled", "light", "full")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program; seconds."""

    wall_s: float
    cpu_s: float  # of it and its children
    corrected_s: float = 0.0  # wall_s without what the profiler says it cost


def workloads(options: argparse.Namespace) -> dict[str, list[str]]:
    """{name: command}; `{out}` stands for a new directory."""
    train = [sys.executable, "-m", "redline.cli", "train"]
    rest = ["--quiet", "--out", "{out}", "--num-threads", "1", "--no-tensorboard"]
    found: dict[str, list[str]] = {}
    for name in options.algorithms:
        algorithm, _, env = name.partition(":")
        steps = ["--total-env-steps", str(options.env_steps)]
        found[f"redline {algorithm}"] = [
            *(*train, algorithm, "--env", env or "CartPole-v1"),
            *(*steps, *rest),
        ]
    steps = ["--env-steps", str(options.env_steps)]
    found["plain gymnasium and torch"] = [sys.executable, str(PEERS / "plain_loop.py"), *steps]
    if options.sb3_python:
        script = str(PEERS / "stable_baselines3_loop.py")
        for algo, part in (("ppo", 1), ("sac", 8)):
            steps = ["--env-steps", str(max(256, options.env_steps // part))]
            found[f"stable-baselines3 {algo}"] = [
                *(options.sb3_python, script),
                *("--algo", algo, *steps),
            ]
    return {name: c for name, c in found.items() if not options.only or options.only in name}


def run_once(command: list[str], mode: str, directory: Path) -> Run:
    """Run a program to its end.

    Raises:
        RuntimeError: if it fails.
    """
    command = [part.replace("{out}", str(directory / "out")) for part in command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    if mode == "unprofiled":
        status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    else:
        status = run_profiled(command, directory / "session", Options(mode=mode))
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed with status {status}, {mode}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if mode == "unprofiled":
        return Run(wall_s, cpu_s, wall_s)
    return Run(wall_s, cpu_s, wall_s - correction_s(directory / "session"))


def correction_s(session: Path) -> float:
    """What the report takes out of the first process's times."""
    summary = summarize(session)
    cells = [c for c in summary.cells if c.pid == summary.processes[0].pid]
    return sum(cell.raw_s - cell.corrected_s for cell in cells)


def alternate(name: str, command: list[str], modes: tuple[str, ...], rounds: int) -> Any:
    """{mode: [Run per round]}, each round in another order; the first round warms up."""
    found: dict[str, list[Run]] = {mode: [] for mode in modes}
    for number in range(rounds + 1):
        shift = number % len(modes)
        for mode in modes[shift:] + modes[:shift]:
            with tempfile.TemporaryDirectory() as directory:
                run = run_once(command, mode, Path(directory))
            if number > 0:
                found[mode].append(run)
        shown = ", ".join(f"{m} {found[m][-1].wall_s:.2f} s" for m in modes if found[m])
        print(f"{name} {number}/{rounds}: {shown or 'warm-up'}", flush=True)
    return found


def overhead(options: argparse.Namespace) -> None:
    """Medians over the rounds of profiled over unprofiled, wall and CPU."""
    rows = []
    for name, command in workloads(options).items():
        runs = alternate(name, command, MODES, options.pairs)
        row: dict[str, Any] = {"workload": name, "runs": {}}
        for mode in MODES:
            row["runs"][mode] = [asdict(run) for run in runs[mode]]
        for mode in MODES[1:]:
            for kind in ("wall_s", "cpu_s"):
                pairs = zip(runs[mode], runs["unprofiled"], strict=True)
                ratios = [getattr(a, kind) / getattr(b, kind) - 1 for a, b in pairs]
                row[f"{mode}_{kind.removesuffix('_s')}_overhead"] = statistics.median(ratios)
        row["unprofiled_s"] = statistics.median(run.wall_s for run in runs["unprofiled"])
        rows.append(row)
    head = "| workload | unprofiled s | light, wall | light, CPU | full, wall | full, CPU |"
    lines = [
        f"| {r['workload']} | {r['unprofiled_s']:.2f} | {r['light_wall_overhead']:+.1%} | "
        f"{r['light_cpu_overhead']:+.1%} | {r['full_wall_overhead']:+.1%} | "
        f"{r['full_cpu_overhead']:+.1%} |"
        for r in rows
    ]
    explained = f"Medians of {options.pairs} rounds in alternating order; whole programs."
    write("overhead", options, explained, head, lines, rows)


def bias(options: argparse.Namespace) -> None:
    """Corrected minus unprofiled, of unprofiled."""
    rows = []
    for name, command in workloads(options).items():
        runs = alternate(name, command, ("unprofiled", "full"), options.pairs)
        unprofiled = statistics.median(run.wall_s for run in runs["unprofiled"])
        pairs = list(zip(runs["full"], runs["unprofiled"], strict=True))
        raw = statistics.median(a.wall_s / b.wall_s for a, b in pairs)
        corrected = statistics.median(a.corrected_s / b.wall_s for a, b in pairs)
        rows.append(
            {
                "workload": name,
                "unprofiled_s": unprofiled,
                "raw_s": raw * unprofiled,
                "corrected_s": corrected * unprofiled,
                "bias": corrected - 1,
                "runs": {mode: [asdict(run) for run in found] for mode, found in runs.items()},
            }
        )
    directory = options.out or RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bias-rows.json").write_text(
        json.dumps([{k: v for k, v in row.items() if k != "runs"} for row in rows], indent=1) + "\n"
    )
    sizes = [abs(row["bias"]) for row in rows]
    explained = (
        f"Medians of {options.pairs} alternating pairs. Mean absolute bias "
        f"{statistics.mean(sizes):.1%}, worst {max(sizes):.1%}."
    )
    head = "| workload | unprofiled s | as recorded s | corrected s | bias |"
    lines = [
        f"| {r['workload']} | {r['unprofiled_s']:.2f} | {r['raw_s']:.2f} | "
        f"{r['corrected_s']:.2f} | {r['bias']:+.1%} |"
        for r in rows
    ]
    write("bias", options, explained, head, lines, rows)


def sweep(options: argparse.Namespace) -> None:
    """Intervals per second, and a synthetic session from disk to summary."""
    rng, count = np.random.default_rng(0), options.events // 2
    intervals = {}
    for label in ("python", "backend", "simulator", "gpu"):
        edges = np.cumsum(rng.integers(1, 2000, 2 * (count // 4))).astype(np.int64)
        intervals[label] = edges.reshape(-1, 2)
    edges_total = 2 * sum(map(len, intervals.values()))
    seconds = min(timed(lambda: overlap(intervals)) for _ in range(3))
    with tempfile.TemporaryDirectory() as directory:
        session = Path(directory) / "session"
        size = synthetic_session(session, options.events, rng)
        code = (
            "import json, resource, sys, time\n"
            "from redline.profile.analyse.summary import summarize\n"
            "began = time.perf_counter()\nsummary = summarize(sys.argv[1])\n"
            "took = time.perf_counter() - began, time.process_time()\n"
            "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
            "print(json.dumps([*took, peak]))\n"
        )
        command = [sys.executable, "-c", code, str(session)]
        done = [subprocess.run(command, check=True, capture_output=True) for _ in range(3)]
    end_to_end = [json.loads(each.stdout) for each in done]
    row = {
        "events": options.events,
        "overlap_events_per_s": edges_total / seconds,
        "analysis_s": min(each[0] for each in end_to_end),
        "process_cpu_s": min(each[1] for each in end_to_end),  # imports and all
        "peak_bytes": max(each[2] for each in end_to_end),
        "bytes_per_event": size / options.events,
    }
    head = (
        "| events | sweep, events per CPU s | analysis s | process CPU s | peak memory MiB | "
        "bytes per event |"
    )
    line = (
        f"| {row['events']:,} | {row['overlap_events_per_s']:,.0f} | {row['analysis_s']:.2f} | "
        f"{row['process_cpu_s']:.2f} | {row['peak_bytes'] / 2**20:.0f} | "
        f"{row['bytes_per_event']:.2f} |"
    )
    explained = "Best of three; an event is a begin or an end. One core."
    write("sweep", options, explained, head, [line], [row])


def timed(action: Any) -> float:
    """CPU seconds that a call takes: a machine that does other things, too, cannot inflate them."""
    began = time.process_time()
    action()
    return time.process_time() - began


def synthetic_session(directory: Path, events: int, rng: np.random.Generator) -> int:
    """Steps of simulation and inference with twenty native calls each; its size in bytes."""
    import pyarrow as pa

    lock = create_session(directory, mode="full", command=["synthetic"])
    home = directory / "processes" / "1-0"
    home.mkdir()
    names = [
        (8, "operation", "simulation", 0, None),
        (9, "operation", "inference", 0, None),
        (10, "call", "mj_step", levels.SIMULATOR, "mujoco"),
        (11, "call", "linear", levels.BACKEND, "torch._C._nn"),
    ]
    (home / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in names))
    step = [16, *[20, 21] * 20, 17, 18, *[22, 23] * 20, 19]
    codes = np.tile(np.array(step, np.uint16), events // len(step))
    codes = np.concatenate([np.array([layout.CODE_WINDOW_ON], np.uint16), codes])
    deltas = rng.integers(50, 2000, len(codes)).astype(np.uint32)
    start = {"pid": 1, "parent_pid": 0, "name": "synthetic", "base_ns": 0}
    end = {"time_ns": int(deltas.sum()), "cpu_s": 1.0, "dropped": 0}
    notes = [{"event": "start", **start}, {"event": "end", **end}]
    (home / "process.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    shard = home / "thread-00000.arrow"
    batch = pa.record_batch([pa.array(deltas), pa.array(codes)], ["delta_ns", "code"])
    with pa.ipc.new_stream(str(shard), batch.schema) as stream:
        for at in range(0, len(codes), 1 << 15):
            stream.write_batch(batch.slice(at, 1 << 15))
    lock.release()
    return shard.stat().st_size


def write(
    name: str, options: argparse.Namespace, explained: str, head: str, lines: list[str], rows: Any
) -> None:
    """Print the table and write both files."""
    directory = options.out or RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    table = "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines])
    print(table)
    given = " ".join(a for a in sys.argv[1:] if not os.path.isabs(a))
    text = f"# Profiler: {name}\n\n```bash\npython -m benchmarks.profiler {given}\n```\n\n"
    text += f"{explained}\n\n{table}\n\n{as_markdown()}"
    (directory / f"{name}.md").write_text(text)
    (directory / f"{name}.json").write_text(
        json.dumps({"machine": describe(), "results": rows}, indent=1) + "\n"
    )


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(
        description="What profiling costs, and how true and fast it is."
    )
    parser.add_argument("command", choices=("overhead", "bias", "sweep"))
    parser.add_argument("--pairs", type=int, default=9, help="rounds after the warm-up round")
    parser.add_argument("--env-steps", type=int, default=50_000, help="per run")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        metavar="NAME[:ENV]",
        default=["ppo", "a2c", "dqn", "sac:Pendulum-v1", "td3:Pendulum-v1"],
    )
    parser.add_argument("--sb3-python", metavar="PYTHON", help="has stable-baselines3")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--events", type=int, default=10_000_000, help="of the sweep")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/profiler")
    options = parser.parse_args()
    {"overhead": overhead, "bias": bias, "sweep": sweep}[options.command](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
