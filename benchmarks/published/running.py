"""Runs many seeds at once, each in a process with cores of its own.

Nothing is lost when any process is killed at any moment: what is finished has a result.json,
what has begun is resumed from its newest checkpoint, on CPU cores to the bit, and everything else
has not begun. Nothing but the run directories says how far the suite is.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol, TypeAlias

from benchmarks.published.experiments import Experiment
from benchmarks.published.one_run import RESULT
from benchmarks.train import environment

POLL_S = 0.5
State: TypeAlias = Literal["finished", "begun", "waiting"]
Cores: TypeAlias = tuple[int, ...]  # of one run


@dataclass(frozen=True, slots=True)
class Seed:
    """One run of an experiment, in its directory."""

    experiment: Experiment
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """sac-HalfCheetah-v5-seed1."""
        return f"{self.experiment.name}-seed{self.seed}"

    @property
    def out(self) -> Path:
        """The run directory."""
        return self.folder / self.name

    @property
    def log(self) -> Path:
        """What its process prints."""
        return self.folder / "logs" / f"{self.name}.txt"

    def state(self) -> State:
        """How far it is, as its directory says."""
        if (self.out / RESULT).exists():
            return "finished"
        return "begun" if (self.out / "config.json").exists() else "waiting"

    def result(self) -> dict[str, Any]:
        """What it reached; it must be finished."""
        return json.loads((self.out / RESULT).read_text())


class Process(Protocol):
    """What `run_all` needs of a process: `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to stop."""
        ...

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        ...


def seeds_of(experiments: list[Experiment], folder: Path) -> list[Seed]:
    """Every run of the experiments, in the order in which they are to be run."""
    return [Seed(e, seed, folder) for e in experiments for seed in range(1, e.seeds + 1)]


def start(seed: Seed, cores: Cores, place: Sequence[str] = ()) -> Process:
    """Its process, on those cores; what it prints is appended to its log.

    Args:
        seed: to run.
        cores: numbers of its cores.
        place: options of `redline train` for where a run computes, if it has not begun.
    """
    seed.log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "benchmarks.published.one_run"),
        *("--cores", *map(str, cores)),
        *("--experiment", seed.experiment.name, "--seed", str(seed.seed)),
        *("--out", str(seed.out), "--parent", str(os.getpid())),
        f"--place={shlex.join(place)}",
    ]
    with seed.log.open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment(len(cores)))


def run_all(
    seeds: list[Seed],
    cores: list[Cores],
    begin: Callable[[Seed, Cores], Process] = start,
    *,
    stopped: Callable[[], bool] = lambda: False,
    poll_s: float = POLL_S,
) -> list[Seed]:
    """Run everything that is not finished, one process on each group of cores.

    Args:
        seeds: in the order in which they are begun.
        cores: numbers of the cores that each process has.
        begin: starts a process.
        stopped: whether to tell all processes to stop; they write checkpoints then.
        poll_s: seconds between looks at the processes.

    Returns:
        Those that failed.
    """
    waiting = deque(seed for seed in seeds if seed.state() != "finished")
    free, running, failed = list(cores), {}, []
    try:
        while (waiting or running) and not stopped():
            while waiting and free:
                seed, own = waiting.popleft(), free.pop(0)
                place = f"core{'s' * (len(own) > 1)} {' and '.join(map(str, own))}"
                print(f"{seed.name}: {seed.state()}, on {place}", flush=True)
                running[own] = seed, begin(seed, own)
            for own, (seed, process) in list(running.items()):
                if process.poll() is not None:
                    del running[own]
                    free.append(own)
                    if not _report(seed):
                        failed.append(seed)
            if running:
                time.sleep(poll_s)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
    return failed


def _report(seed: Seed) -> bool:
    """Say how the process of a seed ended; true if the run is finished."""
    if seed.state() == "finished":
        print(f"{seed.name}: return {seed.result()['return_mean']:,.1f}", flush=True)
        return True
    lines = seed.log.read_text().strip().splitlines() if seed.log.exists() else []
    print(f"{seed.name}: NOT FINISHED: {lines[-1] if lines else 'it said nothing'}", flush=True)
    return False


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a folder for one suite.

    Raises:
        SystemExit: if another process runs a suite in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".suite.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(
                f"another process runs a suite in {folder}. Wait for it, or give another --out."
            ) from None
        yield


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Inside, SIGINT and SIGTERM only make the returned function true."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def usable_cores(jobs: int | None, threads: int = 1) -> list[Cores]:
    """The cores of each process: out of all that this one may use, for as many as fit, or `jobs`.

    Args:
        jobs: processes at a time; None for as many as there are cores for.
        threads: cores of each process.

    Raises:
        SystemExit: if there are fewer.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    if not 1 <= threads <= len(cores):
        raise SystemExit(
            f"--threads {threads}: each thread has a core of its own, and {len(cores)} can be "
            f"used. Give 1 to {len(cores)}."
        )
    groups = [tuple(cores[i : i + threads]) for i in range(0, len(cores) - threads + 1, threads)]
    if jobs is not None and not 1 <= jobs <= len(groups):
        each = "a core" if threads == 1 else f"{threads} cores"
        raise SystemExit(
            f"--jobs {jobs}: each run has {each} of its own, and {len(cores)} can be used. Give 1 "
            f"to {len(groups)}."
        )
    return groups[:jobs]


def progress_of(seed: Seed) -> tuple[int, float | None]:
    """env_steps and return of its last row so far; (0, None) if there is none."""
    path = seed.out / "progress.csv"
    if not path.exists():
        return 0, None
    # A killed process may leave the last line unfinished.
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = list(csv.DictReader(lines))
    if not rows:
        return 0, None
    returned = rows[-1].get("return_mean")
    return int(rows[-1]["env_steps"]), float(returned) if returned else None


def status(seeds: list[Seed]) -> str:
    """A line per run, and how many there are in each state."""
    lines, counts = [], {"finished": 0, "begun": 0, "waiting": 0}
    for seed in seeds:
        state = seed.state()
        counts[state] += 1
        line = f"{seed.name:48s} {state:9s}"
        if state == "finished":
            line += f" 100%  greedy return {seed.result()['return_mean']:12,.1f}"
        elif state == "begun":
            steps, returned = progress_of(seed)
            line += f" {steps / seed.experiment.env_steps:4.0%}"
            line += "" if returned is None else f"  return so far {returned:12,.1f}"
        lines.append(line.rstrip())
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*lines, total])
