"""Read the machine beside the program: CPU per core, memory per process, and the GPUs.

Runs outside the program: in `redline profile`'s own process, or for `profile.session` in a small
helper process that ends with the session. So it takes nothing from the program's interpreter.

`samples.jsonl`: the first line says what can be read, each other line is one reading:
`{"time_ns": CLOCK_MONOTONIC, "cpu": [busy share per core since the last], "processes":
{pid: {rss_bytes, cpu_s}}, "gpu": [{utilization, memory_used_bytes, ...} per device]}`. Where
readings were lost before it, it says how many in all: `"lost": 3`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from redline.profile import layout
from redline.profile.record.json_lines import JsonLines
from redline.profile.record.nvml import Nvml, NvmlMissingError

INTERVAL_S = 0.5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

__all__ = ["HelperProcess", "MachineSampler", "MachineThread"]


class MachineSampler:
    """Takes readings.

    Args:
        session: the session directory.
        proc: where the system shows its processes, in tests another directory.
    """

    def __init__(self, session: Path, proc: Path = Path("/proc")) -> None:
        self._session, self._proc = session, proc
        self._before = self._cpu_ticks()
        self._file = JsonLines(session / layout.MACHINE_SAMPLES)
        self._failed = 0  # readings that could not be taken
        self._started: dict[str, str] = {}  # {process's directory: when, in ticks}; "": it is gone
        self._nvml: Nvml | None = None
        absent = ""
        try:
            self._nvml = Nvml()
        except NvmlMissingError as error:
            absent = str(error)
        self._file.append(
            {
                "event": "start",
                "cores": sorted(self._before),
                "gpus": self._nvml.names() if self._nvml is not None else [],
                "gpus_absent": absent,
            }
        )

    def read(self) -> None:
        """Take one reading and write it; what fails now must not end those to come."""
        try:
            processes = self._processes()
        except OSError:
            self._failed += 1
            return
        row: dict[str, Any] = {
            "time_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            "cpu": self._busy_shares(),
            "processes": processes,
        }
        if self._nvml is not None:
            row["gpu"] = self._nvml.read()
        if lost := self._failed + self._file.lost:
            row["lost"] = lost
        self._file.append(row)

    def close(self) -> None:
        """The last reading was taken."""
        self._file.close()
        if self._nvml is not None:
            self._nvml.close()

    def _cpu_ticks(self) -> dict[int, tuple[int, int]]:
        """{core: (busy, all) ticks since the machine started}."""
        found: dict[int, tuple[int, int]] = {}
        try:
            lines = (self._proc / "stat").read_text().splitlines()
        except OSError:
            return {}
        for line in lines:
            name, *numbers = line.split()
            if name.startswith("cpu") and name != "cpu":
                # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
                ticks = [int(number) for number in numbers[:8]]
                found[int(name[3:])] = (sum(ticks) - sum(ticks[3:5]), sum(ticks))
        return found

    def _busy_shares(self) -> list[float]:
        now = self._cpu_ticks()
        shares: list[float] = []
        for core, (busy, whole) in sorted(now.items()):
            busy_before, whole_before = self._before.get(core, (0, 0))
            passed = whole - whole_before
            shares.append(round((busy - busy_before) / passed, 4) if passed > 0 else 0.0)
        self._before = now
        return shares

    def _processes(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name in os.listdir(self._session / "processes"):
            if self._started.get(name) != "":
                pid = name.partition("-")[0]
                reading = self._process(name, pid)
                if reading is not None:
                    found[pid] = reading
        return found

    def _process(self, name: str, pid: str) -> dict[str, float] | None:
        """One reading; None for a process that is gone, whose pid may be another's by now."""
        try:
            resident = int((self._proc / pid / "statm").read_text().split()[1])
            after_name = (self._proc / pid / "stat").read_text().rpartition(")")[2].split()
            user, system, start = after_name[11], after_name[12], after_name[19]
        except (FileNotFoundError, ProcessLookupError):
            self._started[name] = ""
            return None
        except (OSError, IndexError):
            return None
        if self._started.setdefault(name, start) != start:
            self._started[name] = ""
            return None
        cpu_s = (int(user) + int(system)) / TICKS_PER_S
        return {"rss_bytes": resident * PAGE_BYTES, "cpu_s": cpu_s}


class MachineThread:
    """Readings from a thread of this process, which is not the profiled one."""

    def __init__(self, session: Path) -> None:
        self._over = threading.Event()
        self._sampler = MachineSampler(session)
        self._thread = threading.Thread(target=self._run, name="redline-profile-machine")
        self._thread.daemon = True
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._sampler.read()

    def stop(self) -> None:
        """End, with one last reading."""
        self._over.set()
        self._thread.join()
        self._sampler.read()
        self._sampler.close()


_PATIENCE_S = 2.0  # for a process that has been told to end


class HelperProcess:
    """Readings from a process of its own, which ends by itself when the session does.

    It is no child of this one: a program may wait for whichever of its children ends next. The
    exception is a program that the system gives orphans to: PID 1 of a container, a subreaper.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(self, session: Path) -> None:
        package = str(Path(__file__).parents[3])
        code = (
            "import os, sys\n"
            "if pid := os.fork():\n"
            "    os.write(int(sys.argv[2]), b'%d' % pid)\n"
            "    os._exit(0)\n"
            f"sys.path.append({package!r})\n"
            "from redline.profile.record.machine import watch_session\n"
            "watch_session(sys.argv[1])"
        )
        environment = {k: v for k, v in os.environ.items() if k != layout.ENVIRONMENT}
        self._file, theirs = os.pipe()  # closed by the system when the helper ends
        try:
            starts = subprocess.Popen(
                [sys.executable, "-c", code, str(session), str(theirs)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,  # an interrupt from the terminal is not for it
            )
        except BaseException:
            os.close(self._file)
            raise
        finally:
            os.close(theirs)
        starts.wait()
        self._helper = int(os.read(self._file, 32) or 0)
        self._identity = _identity(self._file)
        self._pid = os.getpid()

    def stop(self) -> None:
        """End it, now that the session is over; for a forked child it is not."""
        # A program that closes all files has let go of the session's lock, too: the helper ends.
        if os.getpid() != self._pid or _identity(self._file) != self._identity:
            return
        # The second for one that ignores the first, as whoever started us does.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._helper and not self._has_ended(0.0):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._helper, number)
                self._has_ended(_PATIENCE_S)
        if self._helper and self._has_ended(0.0):
            with contextlib.suppress(ChildProcessError):  # it is only where orphans come to us
                os.waitpid(self._helper, 0)
        os.close(self._file)

    def _has_ended(self, patience_s: float) -> bool:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))


def _identity(file: int) -> tuple[int, int]:
    """Which file a number stands for; what a program has closed is none."""
    try:
        found = os.fstat(file)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def watch_session(directory: str) -> None:
    """Take readings until whoever made the session lets go of its lock."""
    session = Path(directory)
    sampler = MachineSampler(session)
    with open(session / "lock", "a+") as lock:
        while True:
            time.sleep(INTERVAL_S)
            sampler.read()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            break
    sampler.close()
