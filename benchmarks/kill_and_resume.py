"""Does a killed run end like one that was never stopped? Kills with SIGKILL at random moments.

    python -m benchmarks.kill_and_resume --case cartpole --kills 10
    python -m benchmarks.kill_and_resume            # all cases

A case is trained once without a stop. Then again, killed at random moments (drawn from the
time the first took) and resumed each time. Both must have the same params_sha256 and the same
progress.csv in every column but those of time. Prints one line per case and writes
benchmarks/results/kill_and_resume.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.learning import redline
from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results" / "kill_and_resume.json"
CASES = {
    "cartpole": "ppo --env CartPole-v1 --total-env-steps 40000 --checkpoint-interval 1500",
    "cartpole-recurrent": (
        "ppo --env redline/CartPoleHiddenVelocity-v1 --total-env-steps 20000 "
        "--checkpoint-interval 2000"
    ),
    "cartpole-workers": (
        "ppo --env CartPole-v1 --total-env-steps 20000 --checkpoint-interval 1500 "
        "--collector workers --num-workers 2"
    ),
    "halfcheetah": (
        "ppo --env HalfCheetah-v5 --total-env-steps 60000 --checkpoint-interval 3000 "
        "--log-interval 5000"
    ),
    "breakout-in-process": (
        "ppo --env ALE/Breakout-v5 --env-backend gymnasium --total-env-steps 6144 --num-envs 4 "
        "--rollout-length 64 --checkpoint-interval 500 --log-interval 500 --num-threads 1"
    ),
    "breakout-ale-vector": (
        "ppo --env ALE/Breakout-v5 --env-backend ale --total-env-steps 6144 --num-envs 4 "
        "--rollout-length 64 --checkpoint-interval 500 --log-interval 500 --num-threads 1"
    ),
    "sac": (
        "sac --env Pendulum-v1 --total-env-steps 5000 --checkpoint-interval 250 --log-interval 250"
    ),
    "dqn-prioritized": (
        "dqn --preset rainbow --env CartPole-v1 --total-env-steps 12000 "
        "--checkpoint-interval 500 --log-interval 500"
    ),
    "r2d1": (
        "r2d1 --env redline/TMaze-v1 --total-env-steps 12000 --checkpoint-interval 500 "
        "--log-interval 500"
    ),
}
TIME_COLUMNS = ("wall_time_s", "sps")


def outcome(run: Path) -> tuple[str, list[dict[str, str]]]:
    """The parameters' hash, and progress.csv without the columns of time."""
    printed = subprocess.run(
        redline("inspect", str(run)), check=True, capture_output=True, text=True
    ).stdout
    sha = json.loads(printed.strip().splitlines()[-1])["params_sha256"]
    with (run / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return sha, [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in rows]


def begin_or_resume(arguments: str, run: Path) -> subprocess.Popen[bytes]:
    """Start the run, or go on with it if it has begun."""
    if (run / "config.json").exists():
        return subprocess.Popen(redline("train", "--resume", str(run), "--quiet"))
    options = [*shlex.split(arguments), "--out", str(run), "--quiet"]
    return subprocess.Popen(redline("train", *options))


def run_case(name: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """One case: the reference, the killed run, and whether they agree."""
    arguments = CASES[name]
    started = time.monotonic()
    process = begin_or_resume(arguments, folder / "whole")
    while process.poll() is None and not (folder / "whole" / "config.json").exists():
        time.sleep(0.01)
    startup_s = time.monotonic() - started
    if process.wait() != 0:
        raise SystemExit(f"{name}: the reference run failed")
    training_s = time.monotonic() - started - startup_s
    rng = random.Random(seed)
    killed_at: list[float] = []
    for _ in range(kills):
        process = begin_or_resume(arguments, folder / "killed")
        # On average less than a part of the training, so that all kills come before its end.
        patience_s = rng.uniform(0.5 * startup_s, startup_s + 1.6 * training_s / kills)
        try:
            process.wait(patience_s)
            break  # complete before all kills were spent
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed_at.append(round(patience_s, 2))
    if begin_or_resume(arguments, folder / "killed").wait() != 0:
        raise SystemExit(f"{name}: the resumed run failed")
    expected, actual = outcome(folder / "whole"), outcome(folder / "killed")
    return {
        "case": name,
        "arguments": arguments,
        "kills": len(killed_at),
        "killed_after_s": killed_at,
        "params_equal": expected[0] == actual[0],
        "progress_equal": expected[1] == actual[1],
        "rows": len(expected[1]),
        "params_sha256": expected[0],
    }


def main() -> int:
    """Run the cases; 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file to write")
    options = parser.parse_args()
    results = []
    for name in options.case:
        with tempfile.TemporaryDirectory() as folder:
            result = run_case(name, options.kills, options.seed, Path(folder))
        results.append(result)
        print(
            f"{name}: {result['kills']} kills, params equal: {result['params_equal']}, "
            f"progress equal: {result['progress_equal']} ({result['rows']} rows)",
            flush=True,
        )
    options.out.write_text(json.dumps({"machine": describe(), "cases": results}, indent=1) + "\n")
    return 0 if all(r["params_equal"] and r["progress_equal"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
