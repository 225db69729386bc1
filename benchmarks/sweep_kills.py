"""Does a sweep whose launcher and runs are killed end like one that was left alone?

    python -m benchmarks.sweep_kills --kills 20
    python -m benchmarks.sweep_kills --scheduling     # cost per run, and of a look, at 10,000 runs

Three algorithms x two environments x three seeds on two slots of one core each. The sweep runs
once undisturbed. Then again: the launcher is killed with -9 at random moments and resumed each
time, and as many runs are killed with -9 beneath it. Both must end with 18 runs done once and
with equal params_sha256. While they run, the affinity of each run's processes is read from
/proc. Writes benchmarks/results/sweep_kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.records import require_one_machine
from redline.launch.launcher import launch
from redline.launch.state import NewRun, Outcome, SweepState
from redline.launch.status import status_of

RESULTS = Path(__file__).parent / "results" / "sweep_kills.json"
PLAN = {
    "algorithm": ["ppo", "a2c", "dqn"],
    "base": {
        "total_env_steps": 3000,
        "checkpoint_interval": 250,
        "log_interval": 500,
        "tensorboard": False,
    },
    "by_algorithm": {"dqn": {"learning_starts": 500}},
    "grid": {"env": ["CartPole-v1", "Acrobot-v1"]},
    "seeds": [1, 2, 3],
}
_RETRIES = 100  # a run may be killed again and again


def command(*arguments: str) -> list[str]:
    """The command line of `redline` in this interpreter."""
    return [sys.executable, "-m", "redline", *arguments]


def run_processes(folder: Path) -> dict[str, list[int]]:
    """Run -> ids of its processes, by what their command lines say."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "redline.launch.run_process" in words and any(str(folder) in word for word in words):
            name = next(Path(word).name for word in words if str(folder) in word)
            found.setdefault(name, []).append(int(entry.name))
    return found


def note_cores(folder: Path, seen: dict[str, set[tuple[int, ...]]]) -> None:
    """Add the cores that the threads of each run may use to `seen`."""
    for name, processes in run_processes(folder).items():
        for process in processes:
            for thread in Path(f"/proc/{process}/task").glob("*"):
                try:
                    cores = tuple(sorted(os.sched_getaffinity(int(thread.name))))
                except OSError:
                    continue
                # Before it pins itself it has its launcher's.
                if (folder / "runs" / name / "config.json").exists():
                    seen.setdefault(name, set()).add(cores)


def undisturbed(file: Path, folder: Path) -> tuple[float, dict[str, set[tuple[int, ...]]]]:
    """Run the sweep whole; seconds, and the cores of each run."""
    began, seen = time.monotonic(), {}
    process = subprocess.Popen(
        command("sweep", str(file), "--out", str(folder), "--slots", "2", "--quiet")
    )
    while process.poll() is None:
        note_cores(folder, seen)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the undisturbed sweep ended with {process.returncode}")
    return time.monotonic() - began, seen


def disturbed(file: Path, folder: Path, kills: int, whole_s: float, rng: random.Random) -> Any:
    """Kill launchers and runs at random moments; how many of either, and the last exit code."""
    launchers = runs = 0
    code: int | None = None
    while code is None or launchers < kills:
        words = ("--resume", str(folder))
        if not (folder / "sweep.sqlite").exists():
            words = (str(file), "--out", str(folder), "--slots", "2")
        process = subprocess.Popen(command("sweep", *words, "--retries", str(_RETRIES), "--quiet"))
        end = time.monotonic() + rng.uniform(0.2, max(6.0, 2.5 * whole_s / kills))
        while process.poll() is None and (launchers >= kills or time.monotonic() < end):
            time.sleep(0.05)
            if runs < kills and rng.random() < 0.05:
                runs += _kill_one(folder, rng)
        code = process.poll()
        if code is None:
            process.kill()
            process.wait()
            launchers += 1
        elif launchers < kills:
            break  # all runs were done before all kills were spent
    return {"launcher_kills": launchers, "run_kills": runs, "exit_code": code}


def _kill_one(folder: Path, rng: random.Random) -> int:
    processes = [each for those in run_processes(folder).values() for each in those]
    if not processes:
        return 0
    try:
        os.kill(rng.choice(processes), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def hashes(folder: Path) -> dict[str, str | None]:
    """Run -> params_sha256 of those that are done."""
    return {run.name: run.params_sha256 for run in status_of(folder).runs if run.state == "done"}


def kill_series(kills: int, seed: int) -> dict[str, Any]:
    """The two sweeps, compared."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "sweep.json"
        file.write_text(json.dumps(PLAN))
        whole_s, seen = undisturbed(file, folder / "whole")
        found = disturbed(file, folder / "killed", kills, whole_s, random.Random(seed))
        expected, actual = hashes(folder / "whole"), hashes(folder / "killed")
        with SweepState(folder / "killed") as state:
            attempts = [run.attempts for run in state.runs()]
            # An attempt that a launcher did not live to see the end of has no end.
            finished = [
                sum(each["exit_code"] == 0 for each in state.attempts(run.id))
                for run in state.runs()
            ]
    return {
        "runs": len(expected),
        "undisturbed_s": round(whole_s, 1),
        "one_core_each": all(len(cores) == 1 for each in seen.values() for cores in each),
        "runs_whose_cores_were_read": len(seen),
        **found,
        "attempts": sum(attempts),
        "done": len(actual),
        "finished_once_each": finished == [1] * len(expected),
        "params_equal": sum(expected[name] == actual.get(name) for name in expected),
    }


class Immediate:
    """Places whose runs are over at once: what remains is the launcher's own work."""

    def __init__(self, size: int) -> None:
        self._size, self._running = size, list[int]()

    def free(self) -> str | None:
        """A slot, while there is one."""
        return "slot" if len(self._running) < self._size else None

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        """Note the run, and do nothing."""
        del run_dir, order, place
        self._running.append(run_id)

    def ended(self) -> list[tuple[int, Outcome]]:
        """All that were started."""
        found = [(run, Outcome(result={"return_mean": 1.0}, exit_code=0)) for run in self._running]
        self._running = []
        return found

    def stop(self, run_id: int) -> None:
        """Nothing is at work."""

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        """As `ended`."""
        del grace_s
        return self.ended()


def scheduling(runs: int) -> dict[str, Any]:
    """What the launcher does per run, and what a look at the sweep takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SweepState(folder, create=True) as state:
            began = time.perf_counter()
            state.add(
                NewRun(name=f"run{i}", key=str(i), algorithm="ppo",
                       settings={"seed": i, "key": str(i), "total_env_steps": 1}, varies={})
                for i in range(runs)
            )  # fmt: skip
            added_s = time.perf_counter() - began
            began = time.perf_counter()
            launch(state, Immediate(2), poll_s=0.0)
            launched_s = time.perf_counter() - began
        began = time.perf_counter()
        status = status_of(folder)
        status.to_json()
        look_s = time.perf_counter() - began
    return {
        "runs": runs,
        "done": status.counts["done"],
        "queueing_ms_per_run": round(added_s / runs * 1e3, 4),
        "scheduling_ms_per_run": round(launched_s / runs * 1e3, 4),
        "status_s": round(look_s, 3),
    }


def main() -> int:
    """Run what is asked for; 0 if it came out as it must."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of the launcher, and of runs")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--scheduling", action="store_true", help="only the launcher's own cost")
    parser.add_argument("--runs", type=int, default=10_000, help="queued for --scheduling")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file to write")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    part = "scheduling" if options.scheduling else "kills"
    require_one_machine(options.out, {*results} - {"machine", part}, describe())
    results["machine"] = describe()
    if options.scheduling:
        found = results["scheduling"] = scheduling(options.runs)
        good = found["done"] == options.runs
    else:
        found = results["kills"] = kill_series(options.kills, options.seed)
        good = found["params_equal"] == found["done"] == found["runs"]
    print(json.dumps(found, indent=1))
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
