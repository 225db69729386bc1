"""Commands as forks of this process, which has imported Redline once: real processes, but quick.

A command line costs some five seconds of a core, of which nearly all is importing torch. A fork of
a process that has everything loaded already takes a twentieth of a second. It has standard output,
standard error and an exit status of its own, ends by a signal as a process does, and may be killed.
`run_really` starts an interpreter instead, so that a sample can show that both say the same.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import random
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.warm_workers import Template, WarmSubprocess

from benchmarks.attack.series import CPU_LIMIT_S, WAIT_LIMIT_S
from redline.errors import RedlineError

_LOADED = (  # what a command imports late
    "gymnasium.envs.classic_control", "matplotlib.figure", "redline.cli",
    "redline.collect.acting_worker", "redline.command_line.launch", "redline.command_line.run_list",
    "redline.command_line.runs", "redline.command_line.train", "redline.engines.cpu.serving",
    "redline.envs.backends.processes", "redline.launch.comparison", "redline.launch.status",
    "redline.launch.sweep", "redline.profile.commands", "redline.profile.report.html",
    "redline.serving", "redline.train.loops.evaluate", "redline.train.progress.curves",
    "redline.train.runs.execution", "redline.train.runs.export", "redline.train.runs.run",
    "redline.train.runs.start", "redline.train.runs.summary", "redline.train.runs.warm_start",
)  # fmt: skip
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        status: exit status; negative: the signal that ended it.
        out: its standard output.
        err: its standard error.
        late: whether it was killed because it had not ended in time.
    """

    status: int
    out: str
    err: str
    late: bool = False

    @property
    def said(self) -> str:
        """Everything it wrote."""
        return self.err + self.out

    def problem(self) -> str | None:
        """What no command may do, whatever it is given; None if it did nothing of that kind."""
        if self.late:
            return f"had not ended after {WAIT_LIMIT_S:g} s"
        if self.status == -signal.SIGXCPU:
            return f"computed for {CPU_LIMIT_S:g} s"
        if "Traceback (most recent call last)" in self.said:
            return f"status {self.status} with a traceback"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        if self.status not in (0, 1, 2):
            return f"status {self.status}"
        if "\x1b" in self.said:
            return "an escape sequence was shown"
        if self.status != 0 and not self._gives_a_reason():
            return f"status {self.status} without a reason"
        return None

    def _gives_a_reason(self) -> bool:
        told = self.said.lower()
        usage = any(word in told for word in ("usage", "error", "option", "full helptext"))
        return usage or any(f"{kind.__name__}:" in self.said for kind in _tree(RedlineError))

    def reason(self) -> str:
        """The beginning of what an error says, for a log."""
        lines = [line for line in self.err.splitlines() if line.strip(" ─╭╮│")]
        return (lines[0] if lines else self.out.strip())[:300]


def _tree(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(_tree(each) for each in kind.__subclasses__()))


def load_everything() -> None:
    """Import what commands need, without starting a thread, which forks would lack.

    Raises:
        RuntimeError: if there are threads.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    for module in _LOADED:
        importlib.import_module(module)
    gc.freeze()  # what is loaded stays: a collection in a fork would copy its pages
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"this process has {threads} threads, which forks would lack")


class Command:
    """A command in a fork of this process.

    Args:
        words: after `redline`.
        folder: its working directory.
        before: called in the fork just before the command.
        workers: whether it may start worker processes: they are forks, too.
        cpu_s: seconds of computing after which it is ended; None for no limit.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        before: Callable[[], None] | None = None,
        workers: bool = False,
        cpu_s: float | None = CPU_LIMIT_S,
    ) -> None:
        out, err = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(out[0])
            os.close(err[0])
            _become(words, folder, (out[1], err[1]), before, workers, cpu_s)
        self._pipes = {out[0]: bytearray(), err[0]: bytearray()}
        self._open = set(self._pipes)
        for own, theirs in (out, err):
            os.close(theirs)
            os.set_blocking(own, False)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there still."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, wait_s: float = WAIT_LIMIT_S) -> Ended:
        """Wait for its end; what it started and left behind is killed."""
        end_s, late = time.monotonic() + wait_s, False
        with selectors.DefaultSelector() as selector:
            for pipe in self._open:
                selector.register(pipe, selectors.EVENT_READ)
            while True:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                for pipe in self._read(selector.select(0.002) if selector.get_map() else []):
                    selector.unregister(pipe)
                if found:
                    break
                if not selector.get_map():
                    time.sleep(0.002)
                if not late and time.monotonic() >= end_s:
                    late = True
                    os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._close(os.waitstatus_to_exitcode(status), late=late)

    def _read(self, ready: Sequence[Any]) -> list[int]:
        """Take what is there; the pipes that have ended."""
        ended: list[int] = []
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            self._pipes[key.fd] += data
            if not data:
                ended.append(key.fd)
        return ended

    def _close(self, status: int, *, late: bool) -> Ended:
        texts: list[str] = []
        for pipe, data in self._pipes.items():
            with contextlib.suppress(BlockingIOError):  # somebody else may hold its other end
                while more := os.read(pipe, 1 << 16):
                    data += more
            os.close(pipe)
            texts.append(data.decode(errors="backslashreplace"))
        return Ended(status, texts[0], texts[1], late)


def run(words: Sequence[str], folder: Path, **how: Any) -> Ended:
    """Run a command to its end in a fork; see `Command`."""
    return Command(words, folder, **how).wait()


def run_really(words: Sequence[str], folder: Path, cpu_s: float = 4 * CPU_LIMIT_S) -> Ended:
    """Run a command to its end in an interpreter of its own, as a user does.

    Args:
        words: after `redline`.
        folder: its working directory.
        cpu_s: seconds of computing after which it is ended; importing torch takes five.
    """
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({cpu_s:.0f}, -1))\n"
    text = f"{limit}import runpy; runpy.run_module('redline', run_name='__main__')"
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", text, *words], cwd=folder, env=env, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=WAIT_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended(-signal.SIGKILL, "", "", late=True)
    out, err = (each.decode(errors="backslashreplace") for each in (done.stdout, done.stderr))
    return Ended(done.returncode, out, err)


def _become(
    words: Sequence[str],
    folder: Path,
    outputs: tuple[int, int],
    before: Callable[[], None] | None,
    workers: bool,
    cpu_s: float | None,
) -> None:
    """In the fork: be a process that was started with this command; never returns."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        _take_streams(outputs)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        registry: Any = vars(weakref.finalize)["_registry"]
        registry.clear()  # what this process was to tidy up at its end is the parent's
        random.seed()
        importlib.import_module("numpy").random.seed()
        torch.seed()
        if workers:
            worker_process: Any = importlib.import_module("redline.envs.workers.worker_process")
            worker_process.subprocess = WarmSubprocess(Template(of_this=True))
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 2))
        if before is not None:
            before()
        status = _interpret(words)
    finally:
        os._exit(status & 0xFF)


def _take_streams(outputs: tuple[int, int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in zip((null, *outputs), (0, 1, 2), strict=True):
        os.dup2(source, target)
    os.closerange(3, 256)
    kept = sys.__stdout__
    encoding = "utf-8" if kept is None else kept.encoding
    errors = "strict" if kept is None else kept.errors
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 (for the process's life)
    sys.stdout = open(1, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _interpret(words: Sequence[str]) -> int:
    """Call the command line as an interpreter does, to the end of the process; its status."""
    from redline.cli import run_and_exit

    sys.argv = ["redline", *words]
    code: Any = 1
    try:
        run_and_exit()
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 (this is the end of the process)
        sys.excepthook(type(error), error, error.__traceback__)
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    _end_as_an_interpreter()
    return code or 0


def _end_as_an_interpreter() -> None:
    """Wait for threads, call what is to be called at the end, and write out what is left."""
    shutdown: Any = vars(threading)["_shutdown"]
    shutdown()
    call: Any = vars(atexit)["_run_exitfuncs"]
    call()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def limit_files(size_bytes: int) -> Callable[[], None]:
    """For `before`: no file may become larger than this, and further writing fails as on a disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, _NO_LIMIT[1]))
