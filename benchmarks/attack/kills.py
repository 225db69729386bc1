"""Kills with SIGKILL at random moments, over all algorithms, placements and kinds of checkpoints.

An attempt trains one configuration, kills it at a random moment of its training, resumes it, kills
it again, and so on until it is complete. It must end like one that was never stopped: the same
`params_sha256` and the same progress.csv but for the columns of time. (Of `async`, which no run
repeats, it must be complete.) Each run is a fork of this process, which has everything loaded
already, and so are its workers: a kill takes half a second.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from tests.warm_workers import Template, WarmSubprocess

import redline
from benchmarks.attack.cases import BASE, CASES, UNREPEATED, is_complete, outcome, write_episodes
from benchmarks.attack.forks import load_everything
from benchmarks.attack.series import FAULT, Verdict

KILLS = 4  # of an attempt, at most
_LATEST = 0.6  # of a run's time, when a process is killed that has begun or resumed it
_IN_A_ROW = 100  # attempts to finish a run, of which only the last ones are not killed


class Kills:
    """Runs that are killed and resumed."""

    kind = "kills"
    wait_s = 600.0  # of a run that is begun up to seven times, some with workers

    def prepare(self, folder: Path) -> None:
        """Load what the forks need, without starting a thread."""
        load_everything()
        write_episodes(folder / "episodes.npz")
        os.chdir(folder)
        self._folder = folder
        self._whole: dict[str, tuple[Any, float]] = {}

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """One run of the next configuration."""
        name = list(CASES)[number % len(CASES)]
        expected, took_s = self._reference(name)
        run, kills = folder / "run", 0
        for _ in range(_IN_A_ROW):
            patience_s = rng.uniform(0.0, _LATEST * took_s) if kills < KILLS else 600.0
            status = _train_in_a_fork(name, run, patience_s)
            if status == 0:
                break
            if status != -9:
                said = (folder / "run.err").read_text()[-1500:]
                return Verdict(self.kind, number, name, FAULT, f"ended with {status}\n{said}", name)
            kills += 1
        actual = outcome(run)
        if name in UNREPEATED:  # it depends on which worker was quicker
            verdict = "complete" if is_complete(name, actual) else FAULT
            return Verdict(self.kind, number, name, verdict, f"{kills} kills", name, count=kills)
        if actual != expected:
            what = "parameters" if actual[0] != expected[0] else "progress.csv"
            return Verdict(
                self.kind, number, name, FAULT, f"other {what} after {kills} kills", name
            )
        return Verdict(self.kind, number, name, "identical", f"{kills} kills", name, count=kills)

    def _reference(self, name: str) -> tuple[Any, float]:
        if name not in self._whole:
            run = self._folder / f"whole-{len(self._whole)}"
            began = time.monotonic()
            status = _train_in_a_fork(name, run, 600.0)
            if status != 0:
                said = Path(f"{run}.err").read_text()[-1500:]
                raise RuntimeError(f"{name} alone ended with {status}\n{said}")
            self._whole[name] = outcome(run), time.monotonic() - began
        return self._whole[name]


def _train_in_a_fork(name: str, run: Path, patience_s: float) -> int:
    """Begin the run or go on with it, killed after so long; exit status, or -9."""
    pid = os.fork()
    if pid == 0:
        _child(name, run)
    end = time.monotonic() + patience_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return -9
        time.sleep(0.001)


def _child(name: str, run: Path) -> None:
    """Train; never returns."""
    status = 1
    try:
        os.dup2(os.open(f"{run}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        worker_process: Any = importlib.import_module("redline.envs.workers.worker_process")
        worker_process.subprocess = WarmSubprocess(Template(of_this=True))
        algorithm, env, settings = CASES[name]
        if (run / "config.json").exists():
            json.loads((run / "config.json").read_text())  # whole, however early it was killed
            confirmed = {k: v for k, v in settings.items() if k == "data"}
            redline.train(resume=run, quiet=True, **confirmed)
        else:
            all_settings = {k: v for k, v in (BASE | settings).items() if v is not None}
            redline.train(algorithm, env=env, out=run, **all_settings)
        status = 0
    except BaseException:  # noqa: BLE001 (this is the end of the process)
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)
