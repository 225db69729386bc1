"""Speed of whole training runs, beside Stable-Baselines3 and the single-file scripts.

    python -m benchmarks.train --algo sac td3 dqn ppo-continuous ppo-atari \
        --peers sb3,script,redline --threads 1,2 --peer-python PYTHON

PYTHON is an interpreter with `stable-baselines3`, `gymnasium[mujoco]` and `envpool`, such as a
virtual environment of its own; with `--peer-dir` its packages are taken from that directory
instead. The side `old` is another revision of Redline, checked out and built at `--old DIR`, with
its own `benchmarks/peers/redline_train.py`. The sides run in turn, `--rounds` times each, every run
in a process of its own; SPS and CPU time are those of the steady state, after a warm-up. Settings
are in `benchmarks/workloads.py`. Results go to benchmarks/results/train/<algo>.md and .json.

Where the machine's speed moves by more than what is looked for, `--at-once` runs the sides of a
round at the same time, each on a core of its own, and swaps the cores from round to round: whatever
slows the machine slows both.

The floor of an env_step is one step of the raw environment plus the floating-point operations
of acting and learning at the rate of the workload's largest matrix product, as the fastest
library call here multiplies it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.floor import floor_s
from benchmarks.machine import as_markdown, describe
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "train"
GOALS = {  # times Stable-Baselines3, with 1 and with 2 threads
    "sac": {1: 1.75, 2: 2.1},
    "td3": {1: 1.7, 2: 1.8},
    "dqn": {1: 5.0, 2: 5.0},
    "ppo-continuous": {1: 4.0, 2: 4.0},
    "ppo-atari": {1: 1.45, 2: 1.65},
}


def environment(threads: int, peer_dir: Path | None = None) -> dict[str, str]:
    """Every library takes its number of threads from here too."""
    paths = [str(ROOT), str(ROOT / "src")] + ([str(peer_dir)] if peer_dir else [])
    given = os.environ.get("PYTHONPATH")
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(paths + ([given] if given else [])),
    }


def run_json(command: list[str], env: dict[str, str], where: Path = ROOT) -> dict[str, Any]:
    """The JSON object in the last line that a program prints.

    Raises:
        RuntimeError: if the program fails, with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=where)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_redline(workload: Workload, threads: int, seed: int, options: Any) -> dict[str, Any]:
    """One run here."""
    settings = dict(workload.settings)
    if options.accelerate:
        settings["accelerate"] = options.accelerate
    return run_json(
        [
            *(sys.executable, "-m", "benchmarks.peers.redline_train"),
            *("--algo", workload.algorithm, "--settings", json.dumps(settings)),
            *("--warmup", str(workload.warmup), "--measured", str(workload.measured)),
            *("--threads", str(threads), "--seed", str(seed)),
        ],
        environment(threads),
    )


def run_old(workload: Workload, threads: int, seed: int, options: Any) -> dict[str, Any]:
    """One run of another revision, with that revision's own measuring program."""
    command = [
        *(sys.executable, "-m", "benchmarks.peers.redline_train"),
        *("--algo", workload.algorithm, "--settings", json.dumps(workload.settings)),
        *("--warmup", str(workload.warmup), "--measured", str(workload.measured)),
        *("--threads", str(threads), "--seed", str(seed)),
    ]
    paths = os.pathsep.join([str(options.old), str(options.old / "src")])
    return run_json(command, environment(threads) | {"PYTHONPATH": paths}, options.old)


def run_sb3(workload: Workload, threads: int, seed: int, options: Any) -> dict[str, Any]:
    """One run of Stable-Baselines3."""
    return run_json(
        [
            *(options.peer_python, "-m", "benchmarks.peers.stable_baselines3_train"),
            *("--algo", workload.algorithm, "--settings", json.dumps(workload.peer)),
            *("--warmup", str(workload.warmup), "--measured", str(workload.measured)),
            *("--threads", str(threads), "--seed", str(seed)),
        ],
        environment(threads, options.peer_dir),
    )


def run_script(workload: Workload, threads: int, seed: int, options: Any) -> dict[str, Any]:
    """One run of the single-file script; its steady state is read from its CSV."""
    total = workload.warmup + workload.measured
    with tempfile.TemporaryDirectory() as directory:
        rows_file = Path(directory) / "rows.csv"
        command = [
            *(sys.executable, str(ROOT / "scripts" / workload.script)),
            *("--total-env-steps", str(total), "--seed", str(seed), "--device", "cpu"),
            *("--csv", str(rows_file), "--eval-episodes", "0", *workload.script_options),
        ]
        if workload.script_threads is not None:
            command += [workload.script_threads, str(threads)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(threads), cwd=ROOT
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        with rows_file.open() as file:
            rows = [(int(r["env_steps"]), float(r["wall_time_s"])) for r in csv.DictReader(file)]
    steady = [row for row in rows if row[0] >= workload.warmup]
    if len(steady) < 2:
        raise RuntimeError(
            f"{workload.script} wrote {len(steady)} rows after {workload.warmup} env_steps; two "
            f"are needed to tell its speed. Have it write more often by script_options in "
            f"benchmarks/workloads.py, or raise `measured` there."
        )
    steps, wall_s = steady[-1][0] - steady[0][0], steady[-1][1] - steady[0][1]
    return {"env_steps": steps, "wall_s": wall_s, "sps": steps / wall_s}


SIDES = {"sb3": run_sb3, "script": run_script, "old": run_old, "redline": run_redline}


def measure(name: str, sides: list[str], threads: int, options: Any) -> dict[str, Any]:
    """All rounds of one workload with one number of threads, the sides in turn."""
    workload = WORKLOADS[name]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for round_ in range(options.rounds):
        # Each side is first as often as any other.
        turn = round_ % len(sides)
        order = sides[turn:] + sides[:turn]
        for side, run in _round(order, workload, threads, round_ + 1, options):
            runs[side].append(run)
            print(f"{name}, {threads} threads, {side}: {run['sps']:,.0f} SPS", flush=True)
    floor = run_json(
        [sys.executable, "-m", "benchmarks.floor", "--algo", name, "--threads", str(threads)],
        environment(threads),
    )
    medians = {s: statistics.median(r["sps"] for r in found) for s, found in runs.items()}
    return {
        "threads": threads,
        "sps": medians,
        "cpu_us_per_step": {
            side: statistics.median(r["cpu_us_per_step"] for r in found)
            for side, found in runs.items()
            if "cpu_us_per_step" in found[0]
        },
        "accelerate": runs["redline"][0]["accelerate"] if "redline" in runs else None,
        "first_iteration_s": runs["redline"][0]["first_iteration_s"] if "redline" in runs else None,
        "ratio_to_sb3": {
            side: [a["sps"] / b["sps"] for a, b in zip(runs[side], runs["sb3"], strict=True)]
            for side in sides
            if side != "sb3" and "sb3" in sides
        },
        "ratio_to_old": [
            a["sps"] / b["sps"] for a, b in zip(runs["redline"], runs["old"], strict=True)
        ]
        if "old" in sides and "redline" in sides
        else [],
        "floor": floor | {"sps": 1.0 / floor_s(workload, floor)},
        "runs": runs,
    }


def _round(
    order: list[str], workload: Workload, threads: int, seed: int, options: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """One run of each side: one after the other, or at once, the i-th on the i-th core."""
    if not options.at_once:
        yield from ((side, SIDES[side](workload, threads, seed, options)) for side in order)
        return
    cores = sorted(os.sched_getaffinity(0))

    def pinned(core: int, side: str) -> dict[str, Any]:
        os.sched_setaffinity(0, {core})  # this thread's, which the run inherits
        return SIDES[side](workload, threads, seed, options)

    with ThreadPoolExecutor(len(order)) as pool:
        yield from zip(order, pool.map(pinned, cores, order), strict=True)


def table(name: str, results: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    text = (
        "| threads | side | SPS | range | CPU us per env_step | times SB3 | goal | "
        "of the floor's SPS |\n|---|---|---|---|---|---|---|---|\n"
    )
    for result in results:
        for side, sps in result["sps"].items():
            every = [run["sps"] for run in result["runs"][side]]
            cpu = result["cpu_us_per_step"].get(side)
            ratios = result["ratio_to_sb3"].get(side)
            goal = GOALS[name].get(result["threads"]) if side == "redline" else None
            text += (
                f"| {result['threads']} | {side} | {sps:,.0f} | {min(every):,.0f} .. "
                f"{max(every):,.0f} | {'' if cpu is None else f'{cpu:,.0f}'} | "
                f"{'' if not ratios else f'{statistics.median(ratios):.2f}'} | "
                f"{'' if goal is None else f'{goal:.2f}'} | {sps / result['floor']['sps']:.0%} |\n"
            )
        floor = result["floor"]
        text += (
            f"| {result['threads']} | floor | {floor['sps']:,.0f} | | | | | |\n"
            f"| | of it: raw environment | {1e6 * floor['env_s']:,.1f} us | | | | | |\n"
            f"| | of it: {floor['flops'] / 1e6:,.1f} MFLOP at {floor['gflops']:,.0f} GFLOP/s | "
            f"{1e6 * floor['flops'] / floor['gflops'] / 1e9:,.1f} us | | | | | |\n"
        )
    return text


def write_results(name: str, results: list[dict[str, Any]], command: str) -> None:
    """Markdown and JSON of one workload."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    workload = WORKLOADS[name]
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"machine": describe(), "command": command, "results": results}, indent=1) + "\n"
    )
    chosen = {r["accelerate"] for r in results} - {None}
    turns = "simultaneous" if "--at-once" in command else "alternating"
    versions = {
        run["version"] for result in results for run in result["runs"].get("sb3", [])
    }  # as the runs themselves report it
    (RESULTS / f"{name}.md").write_text(
        f"# Speed of {name} ({workload.settings['env']})\n\nMedians of "
        f"{len(next(iter(results[0]['runs'].values())))} {turns} runs; whole training loop, "
        f"steady state: {workload.measured:,} env_steps after {workload.warmup:,}.\n\n"
        f"{table(name, results)}\n"
        f"`--accelerate auto` chose: {', '.join(sorted(chosen)) or 'not measured'}. "
        f"Stable-Baselines3: {', '.join(sorted(versions)) or 'not measured'}.\n\n"
        f"```bash\n{command}\n```\n\nSettings here: `{json.dumps(workload.settings)}`\n\n"
        f"There: `{json.dumps(workload.peer)}`\n\n{as_markdown()}"
    )


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--algo", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--peers", default="sb3,redline", help="of sb3, script, old, redline")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer-dir", type=Path, help="directory with the peer's packages")
    parser.add_argument("--old", type=Path, help="checkout of another revision, built in place")
    parser.add_argument("--accelerate", help="instead of auto")
    parser.add_argument(
        "--at-once", action="store_true", help="a core for each side: 1 thread, even --rounds"
    )
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()
    sides = options.peers = options.peers.split(",")
    if "old" in sides and options.old is None:
        parser.error("--peers old needs --old DIR, a checkout of the other revision")
    if unknown := [side for side in sides if side not in SIDES]:
        parser.error(f"--peers: there is no {unknown}; choose from {', '.join(SIDES)}")
    if options.at_once and (options.threads != "1" or len(sides) > len(os.sched_getaffinity(0))):
        parser.error("--at-once needs --threads 1, and a core for each side")
    if options.at_once and options.rounds % len(sides):
        parser.error(
            f"--at-once: --rounds {options.rounds} is no multiple of {len(sides)}, the sides"
        )
    return options


def main() -> int:
    """Measure, print and write; 1 if a goal is missed."""
    options = _arguments()
    sides = options.peers
    command = "python -m benchmarks.train " + " ".join(
        "PYTHON" if word == options.peer_python else word for word in sys.argv[1:]
    )
    missed = []
    for name in options.algo:
        results = [measure(name, sides, int(n), options) for n in options.threads.split(",")]
        print(table(name, results), flush=True)
        if not options.no_record:
            write_results(name, results, command)
        for result in results:
            if against := result["ratio_to_old"]:
                error = statistics.stdev(against) / len(against) ** 0.5 if against[1:] else 0.0
                print(
                    f"{name}, {result['threads']} threads: {statistics.median(against):.3f} of old "
                    f"(mean {statistics.mean(against):.3f}, standard error {error:.3f})"
                )
            ratios, goal = result["ratio_to_sb3"].get("redline"), GOALS[name].get(result["threads"])
            if ratios and goal and statistics.median(ratios) < goal:
                missed.append(f"{name} with {result['threads']} threads")
    if missed:
        print(f"below the goal: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
