"""Runs as processes on the slots of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from redline.launch.run_process import OUTCOME, read_outcome, write_order
from redline.launch.slots import Slot, held_bytes
from redline.launch.state import Outcome
from redline.plain_files import open_plain

LOG = "output.txt"
_LOG_TAIL_BYTES = 8000
_MEMORY_CHECK_S = 1.0


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    slot: Slot
    run_dir: Path
    lifeline: int  # the launcher's end of the pipe that the process watches
    stopped: bool = False
    too_much: str = ""


class LocalSlots:
    """One process per slot, pinned to its cores.

    A process that the launcher leaves behind, however that ends, writes a checkpoint and ends.

    Args:
        slots: that runs may use.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = {slot.name: slot for slot in slots}
        self._running: dict[int, _Running] = {}
        self._looked_s = 0.0

    def free(self) -> str | None:
        """The name of a slot without a run."""
        taken = {running.slot.name for running in self._running.values()}
        return next((name for name in self._slots if name not in taken), None)

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        """Start a run's process on a slot."""
        slot = self._slots[place]
        write_order(run_dir, {**order, "cores": list(slot.cores), "threads": slot.threads})
        reading, writing = os.pipe()
        try:
            with appending(run_dir / LOG) as log:
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "redline.launch.run_process", str(run_dir)),
                        *("--watch", str(reading)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **slot.environment()},
                    pass_fds=(reading,),
                    start_new_session=True,  # Ctrl-C is for the launcher, which stops its runs
                )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._running[run_id] = _Running(process, slot, run_dir, writing)

    def ended(self) -> list[tuple[int, Outcome]]:
        """The runs whose processes have ended."""
        self._end_those_that_hold_too_much()
        found: list[tuple[int, Outcome]] = []
        for run_id, running in list(self._running.items()):
            code = running.process.poll()
            if code is not None:
                del self._running[run_id]
                os.close(running.lifeline)
                _end_session(running.process.pid)
                outcome = outcome_of(
                    running.run_dir, code, stopped=running.stopped, too_much=running.too_much
                )
                found.append((run_id, outcome))
        return found

    def stop(self, run_id: int) -> None:
        """Ask a run's process to stop."""
        running = self._running.get(run_id)
        if running is not None and not running.stopped:
            running.stopped = True
            running.process.terminate()

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        """Stop every process; kill those that go on after `grace_s` seconds."""
        for run_id in list(self._running):
            self.stop(run_id)
        found: list[tuple[int, Outcome]] = []
        end = time.monotonic() + grace_s
        while self._running:
            found += self.ended()
            if time.monotonic() > end:
                for running in self._running.values():
                    running.process.kill()
            time.sleep(0.02)
        return found

    def _end_those_that_hold_too_much(self) -> None:
        limited = [r for r in self._running.values() if r.slot.memory_bytes is not None]
        now = time.monotonic()
        if not limited or now - self._looked_s < _MEMORY_CHECK_S:
            return
        self._looked_s = now
        all_held = held_bytes([running.process.pid for running in limited])
        for running in limited:
            held, limit = all_held[running.process.pid], running.slot.memory_bytes or 0
            if held > limit:
                running.too_much = (
                    f"the run held {held / 2**30:.2f} GiB, more than memory_gb="
                    f"{limit / 2**30:g} allows, and was ended. Give it more, or a smaller replay "
                    f"or fewer environments"
                )
                running.process.kill()


def _end_session(leader: int) -> None:
    """Kill what a process has left behind in its session, such as workers of a killed run."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def outcome_of(run_dir: Path, code: int, *, stopped: bool, too_much: str = "") -> Outcome:
    """How an attempt ended.

    Args:
        run_dir: of the run.
        code: exit code of its process; negative for a signal.
        stopped: whether it was asked to stop.
        too_much: why it was killed by its launcher; "" if it was not.
    """
    said = read_outcome(run_dir)
    if code == 0 and said.get("result") is not None:
        return Outcome(result=said["result"], exit_code=0)
    exit_signal = -code if code < 0 else None
    by_signal = exit_signal or (code - 128 if code > 128 else None)
    if stopped and by_signal == signal.SIGTERM:
        return Outcome(exit_code=code if code > 0 else None, exit_signal=by_signal, stopped=True)
    error = too_much or said.get("error", "")
    if not error:
        error = f"exit code {code}, without an {OUTCOME}"
        if by_signal:
            error = f"ended by {_signal_name(by_signal)}"
    return Outcome(
        exit_code=code if code >= 0 else None,
        exit_signal=by_signal,
        error=error,
        traceback=said.get("traceback") or log_tail(run_dir),
        stopped=stopped and not too_much,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def appending(path: Path) -> BinaryIO:
    """A file to write to at its end, which must be no link: it could lead elsewhere."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(path, flags, 0o644), "ab")


def log_tail(run_dir: Path) -> str:
    """The end of what a run's process printed."""
    try:
        with open(open_plain(run_dir / LOG), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
