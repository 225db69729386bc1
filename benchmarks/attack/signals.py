"""Signals at random moments, often two in a row: a run that was stopped ends as if it had not been.

An attempt trains one configuration (`cases`) by the command line, sends it SIGTERM, SIGINT or
SIGHUP at a random moment, mostly a second signal shortly after or more than a second later, and
resumes it, until it is complete. Each process must end with 0, or with 128 and the number of one of
its signals, and never with a traceback. In the end parameters and progress.csv must be those of a
run that was left alone.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.attack.cases import (
    CASES,
    References,
    compare,
    is_complete,
    outcome,
    said_by,
    start,
    write_episodes,
)
from benchmarks.attack.forks import Ended, load_everything
from benchmarks.attack.series import FAULT, Verdict
from redline.errors import RedlineError

STOPS = 4  # of an attempt, at most
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LATEST = 0.8  # of a run's time, for the first signal
_IN_A_ROW = 60  # processes to finish a run


class Signals:
    """Runs that are stopped by signals and resumed."""

    kind = "signals"
    wait_s = 900.0

    def prepare(self, folder: Path) -> None:
        """Load what the forks need."""
        load_everything()
        write_episodes(folder / "episodes.npz")
        self._folder, self._references = folder, References(folder)

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """One run of the next configuration."""
        name = list(CASES)[number % len(CASES)]
        expected, took_s, _ = self._references.of(name)
        run, stops = folder / "run", 0
        told: list[str] = []
        for turn in range(_IN_A_ROW):
            mark = folder / f"begun-{turn}"
            command = start(name, run, self._folder, before=mark.touch)
            sent: list[signal.Signals] = []
            if stops < STOPS:
                while not mark.exists():
                    time.sleep(0.001)
                time.sleep(rng.uniform(0.0, _LATEST * took_s))
                sent = self._send(command.signal, rng)
            ended = command.wait()
            told.append(f"{'+'.join(s.name[3:] for s in sent)}: {ended.status}")
            is_done = ended.status == 0 or _is_done(name, run)
            if (problem := _problem(ended, sent, is_done=is_done)) is not None:
                return Verdict(self.kind, number, f"{name}: {told}", FAULT, problem, name)
            if is_done:
                break
            stops += 1
        problem = compare(name, run, expected)
        verdict = FAULT if problem else "identical"
        detail = problem or f"{stops} stops"
        return Verdict(self.kind, number, f"{name}: {told}", verdict, detail, name, count=stops)

    @staticmethod
    def _send(send: Callable[[int], None], rng: random.Random) -> list[signal.Signals]:
        """Send one signal or two; which."""
        sent = [rng.choice(_SIGNALS)]
        send(sent[0])
        if rng.random() < 0.7:
            time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.5), 1.1)))
            sent.append(rng.choice(_SIGNALS))
            send(sent[1])
        return sent


def _is_done(name: str, run: Path) -> bool:
    """Whether a run that a signal ended had nothing left to do."""
    try:
        return is_complete(name, outcome(run))
    except (RedlineError, OSError, LookupError, ValueError):
        return False


def _problem(ended: Ended, sent: list[signal.Signals], *, is_done: bool) -> str | None:
    """What is wrong with how a process ended; None if nothing."""
    allowed = {0} | {128 + number for number in sent}
    if is_done or "stopped" in ended.said:  # there was nothing left to do but to end
        allowed |= {-number for number in sent}
    if ended.late or "Traceback" in ended.said or ended.status not in allowed:
        return f"late: {ended.late}, {said_by(ended)}"
    return None
