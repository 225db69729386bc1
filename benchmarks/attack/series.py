"""A series of attempts of one kind, each with its verdict, in a process that may crash."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from redline.errors import RedlineError

CPU_LIMIT_S = 10.0  # of one attempt; what waits without computing has `WAIT_LIMIT_S`
WAIT_LIMIT_S = 300.0  # the series gives way to whatever else the machine does
FAULT = "FAULT"


class HangError(BaseException):
    """An attempt has used up its time; no `except Exception` may take it for its own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one attempt.

    Attributes:
        kind: of attack.
        number: of the attempt in its kind; with the seed it repeats the attempt.
        what: was done, in words.
        verdict: "refused", "ran", ..., or `FAULT`.
        detail: the message, or the traceback of a fault.
        group: what the attempts are counted by in the report.
        count: how many of what is counted this attempt was worth.
    """

    kind: str
    number: int
    what: str
    verdict: str
    detail: str = ""
    group: str = ""
    count: int = 1


class Attack(Protocol):
    """One kind of attack.

    Attributes:
        kind: its name.
        wait_s: seconds after which an attempt hangs.
    """

    kind: str
    wait_s: float

    def prepare(self, folder: Path) -> None:
        """Make what the attempts spoil copies of; called once in each process."""
        ...

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Attack once.

        Args:
            number: of the attempt.
            rng: seeded by the series' seed, the kind and the number.
            folder: empty, removed afterwards.
        """
        ...


def run_series(attack: Attack, seed: int, numbers: range, folder: Path, log: Path) -> None:
    """Make the attempts, and append what becomes of each to `log`: a line before, one after.

    Args:
        attack: what to do.
        seed: of the whole series.
        numbers: of the attempts.
        folder: for what is prepared.
        log: JSON lines.
    """
    with quiet(), limited(10 * WAIT_LIMIT_S):
        attack.prepare(folder)
    for number in numbers:
        place = folder / f"attempt-{number}"
        place.mkdir()
        note(log, {"kind": attack.kind, "begin": number})
        rng = random.Random(f"{seed} {attack.kind} {number}")
        try:
            with quiet(), limited(attack.wait_s):
                verdict = attack.attempt(number, rng, place)
        except HangError as error:
            verdict = Verdict(attack.kind, number, "", FAULT, f"hang: {error}\n{_stack(error)}")
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            verdict = Verdict(attack.kind, number, "", FAULT, _stack(error))
        note(log, asdict(verdict))
        _remove(place)


def note(log: Path, entry: dict[str, Any]) -> None:
    """Append one line."""
    with log.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _remove(place: Path) -> None:
    """Remove a folder that may hold links, fifos and files without permissions."""
    import shutil

    shutil.rmtree(place, ignore_errors=True)


def _stack(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-3000:]


@contextlib.contextmanager
def limited(wait_s: float) -> Iterator[None]:
    """Raise HangError within if it takes `wait_s` seconds, or computes for `CPU_LIMIT_S`."""

    def late(number: int, _frame: FrameType | None) -> None:
        raise HangError(f"{signal.Signals(number).name} after {time.monotonic() - began:.1f} s")

    began = time.monotonic()
    before = {n: signal.signal(n, late) for n in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_REAL, wait_s)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S * max(1.0, wait_s / WAIT_LIMIT_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def quiet() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Keep what is printed: (stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def refusal(error: BaseException) -> str | None:
    """The message of an error of Redline's own tree that says something; None for any other."""
    if isinstance(error, RedlineError) and str(error).strip():
        return f"{type(error).__name__}: {error}"
    return None
