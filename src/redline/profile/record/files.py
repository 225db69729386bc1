"""Write a session directory: made once by one process, joined by any number."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from redline.errors import SessionError
from redline.profile import layout
from redline.profile.record.json_lines import JsonLines
from redline.profile.record.pace import call_ns
from redline.profile.seal import UNSEALED, seal, seal_process
from redline.usable_cores import usable_cpus

__all__ = ["ProcessFiles", "SessionLock", "create_session", "in_main_thread"]


class SessionLock:
    """Says that a session is being written; the system releases it if we die."""

    def __init__(self, file: IO[str], directory: Path) -> None:
        self._file, self._directory = file, directory

    def release(self) -> None:
        """The session is complete: from here on a change of its files is found."""
        seal(self._directory)
        self._file.close()

    def discard(self) -> None:
        """Nothing was recorded: leave an empty directory, so that it can be used again."""
        shutil.rmtree(self._directory / "processes", ignore_errors=True)
        for name in ("session.json", layout.MACHINE_SAMPLES, "lock"):
            (self._directory / name).unlink(missing_ok=True)
        self.release()


def create_session(
    directory: Path, *, mode: str, command: list[str], watch: Sequence[str] = ()
) -> SessionLock:
    """Make a new session directory.

    Args:
        directory: must not exist, or be empty.
        mode: how the program is recorded.
        command: what is profiled.
        watch: functions that are to be counted, so that a report can say which never came.

    Raises:
        SessionError: if the directory is in use, is not empty, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _refuse_used(directory)
        lock = open(directory / "lock", "a+")  # noqa: SIM115  (held as long as the session)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (directory / "processes").mkdir()
        manifest = {
            "format": layout.FORMAT,
            "version": layout.VERSION,
            "mode": mode,
            "command": command,
            "created_unix_s": time.time(),
            "machine": platform.platform(),
            "boot_id": _boot_id(),  # since which start of the machine its clock counts
            "cpus": usable_cpus(),
            "python": platform.python_version(),
            **({"watch": list(watch)} if watch else {}),
            **UNSEALED,
        }
        temporary = directory / "session.json.tmp"
        temporary.write_text(json.dumps(manifest, indent=1) + "\n")
        temporary.rename(directory / "session.json")
    except OSError as error:
        raise SessionError(
            f"cannot write a session to {directory}: {error}. Give a directory that can be written"
        ) from error
    return SessionLock(lock, directory.absolute())  # the program may change its own meanwhile


def _boot_id() -> str:
    """Names a machine's present start; "" where the system does not tell."""
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(
                command, capture_output=True, text=True, check=False
            ).stdout.strip()
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _refuse_used(directory: Path) -> None:
    if not any(directory.iterdir()):
        return
    if not (directory / "session.json").exists() and not (directory / "lock").exists():
        raise SessionError(
            f"{directory} is not empty and holds no session. Give a new or empty directory"
        )
    with open(directory / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SessionError(
                f"the session directory {directory} is in use by another profile. "
                "Give another directory"
            ) from None
    raise SessionError(
        f"{directory} already holds a session. Give another directory, or remove it first"
    )


class ProcessFiles:
    """This process's part of a session.

    Args:
        session: the session directory.
        base_ns: a CLOCK_MONOTONIC reading, to tell apart processes of one pid.
    """

    def __init__(self, session: Path, base_ns: int) -> None:
        self._pid = os.getpid()
        self._session = session
        self.directory = session / "processes" / f"{self._pid}-{base_ns}"
        try:
            self.directory.mkdir()  # not the session, if that was removed meanwhile
            self._process = JsonLines(self.directory / "process.jsonl")
            self._names = JsonLines(self.directory / "names.jsonl")
        except OSError as error:
            raise SessionError(
                f"cannot join the session in {session}: {error}. "
                "It must stay in place until the program ends"
            ) from error

    def start(self, base_ns: int, mode: str) -> None:
        """Say who this process is; times in its shards count from `base_ns`."""
        self.note(
            "start",
            pid=os.getpid(),
            parent_pid=os.getppid(),
            name=process_name(),
            argv=list(getattr(sys, "orig_argv", sys.argv)),
            base_ns=base_ns,
            unix_offset_ns=time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            python=platform.python_version(),
            mode=mode,
            in_main_thread=in_main_thread(),
            cpu_s=time.process_time(),  # before it was recorded
            **({"call_ns": call_ns()} if mode == "full" else {}),
        )

    def note(self, event: str, **values: Any) -> None:
        """Append one line to process.jsonl."""
        self._process.append({"event": event, **values})

    def name(self, row: tuple[int, str, str, int, str | None, bool]) -> None:
        """Append an interned name.

        A forked child runs other libraries' fork handlers, which may meet new names, before it
        has files of its own: those it must not add to its parent's.
        """
        if os.getpid() == self._pid:
            self._names.append(row[:5])

    def lines_lost(self) -> int:
        """Lines that did not fit, and names that still wait for room."""
        return self._process.lost + self._names.lost + self._names.flush()

    def close(self) -> None:
        """No more lines."""
        self._process.close()
        self._names.close()

    def seal(self) -> None:
        """After `close`, at this process's own end: it may have outlived the recording."""
        seal_process(self._session, self.directory)


def in_main_thread() -> bool:
    """Whether it is the main thread that asks."""
    return threading.get_ident() == threading.main_thread().ident


def process_name() -> str:
    """A short name for this process: its script, module, or role in multiprocessing."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return str(multiprocessing.current_process().name)
    argv = list(getattr(sys, "orig_argv", sys.argv))
    text = " ".join(argv)
    for role in ("resource_tracker", "forkserver"):
        if f"multiprocessing.{role}" in text:
            return role
    if "multiprocessing.spawn" in text:
        return "spawned"
    rest = iter(argv[1:])
    for argument in rest:
        if argument == "-m":
            return next(rest, "python")
        if argument == "-c":
            return "python -c"
        if argument in ("-W", "-X"):
            next(rest, None)
        elif not argument.startswith("-"):
            return Path(argument).name
    return "python"
