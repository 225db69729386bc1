"""Processes that start in milliseconds: forked from one that has imported everything.

A worker of the product is a fresh interpreter, which imports torch: some four seconds of a core.
Hundreds of tests start workers and are about what those do, not about how they start. For them one
template process per test process imports once, and every worker is a fork of it. Tests of the start
itself use fresh interpreters as users do (`cold_workers`).

A test that starts the command line, or a script, many times may ask for the same by the fixture
`warm_subprocess`: a stand-in for the module `subprocess` whose `Popen` and `run` fork the template.

A worker's parent must be the process that asked for it, whose end is its own end. So the template
forks twice, and the test process adopts what its descendants leave behind (`prctl` with
PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import array
import ctypes
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_IMPORTS = (
    "torch",
    "redline.collect.acting_worker",
    "redline.envs.backends.processes",
    "redline.cli",
    "redline.train.runs.execution",
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FROM_THE_START = ("REDLINE_", "PYTHON")  # variables that an interpreter reads as it starts
# Told of sys.path apart; a break point's is read when it is reached (importing Ray sets it); the
# attacks' seed is for the tests alone.
_READ_LATER = ("PYTHONPATH", "PYTHONBREAKPOINT", "REDLINE_ATTACK_SEED")
_MOST_FDS = 32
_HIGH_FD = 500  # above every descriptor that a worker is told of
_REQUEST_BYTES = 1 << 20
# Before any test has changed it: the one whose turn it is when the template starts may have.
_ENVIRONMENT = dict(os.environ)


class Template:
    """The process that workers are forked from.

    Args:
        of_this: a fork of this process, which must have one thread and have imported what workers
            need, rather than a process that imports it again.
    """

    def __init__(self, *, of_this: bool = False) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._started_with = _read_at_start(_ENVIRONMENT)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if of_this:
            self._wait = self._forked(theirs)
            return
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_workers", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT | dict.fromkeys(_ONE_THREAD, "1"),
            )
        self._wait: Callable[[], object] = process.wait

    def _forked(self, theirs: socket.socket) -> Callable[[], object]:
        """Become two processes, of which this one goes on; what waits for the other."""
        pid = os.fork()
        if pid:
            theirs.close()
            return lambda: os.waitpid(pid, 0)
        status = 1
        try:
            self._socket.close()
            main(theirs.detach())
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException as error:  # noqa: BLE001 (this is the end of the process)
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(status)

    def serves(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter with this environment would have started like the template."""
        return _read_at_start(env) == self._started_with

    def fork(
        self, command: list[str], env: Mapping[str, str], fds: Sequence[int], outputs: Sequence[int]
    ) -> int:
        """Start a process as `subprocess.Popen` would; its process id.

        Args:
            command: an interpreter, then `-c TEXT` or `-m MODULE`, then arguments.
            env: its environment.
            fds: descriptors to inherit under the same numbers.
            outputs: two descriptors, to become its standard output and standard error.
        """
        request = {
            "command": command,
            "env": dict(env),
            "fds": list(fds),
            "parent": os.getpid(),
            "directory": os.getcwd(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        rights = array.array("i", [*outputs, *fds])
        self._socket.sendmsg(
            [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        )
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the template of warm workers is gone; its errors are above.")
        return int(answer)

    def close(self) -> None:
        """End the template."""
        self._socket.close()
        self._wait()


class WarmPopen(subprocess.Popen[Any]):
    """A fork of the template, in place of the process that `Popen` would start.

    Args:
        template: what to fork.
        command: see `Template.fork`.
        env: its environment; None: this process's.
        pass_fds: descriptors to inherit.
        stdin: always the null device.
        stdout: PIPE, DEVNULL, or None for this process's own.
        stderr: likewise.
        text: whether pipes give text.
    """

    def __init__(
        self,
        template: Template,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        text: bool = False,
    ) -> None:
        assert stdin == subprocess.DEVNULL
        self.args, self.returncode, self.stdin = command, None, None
        self.text_mode, self.encoding, self.errors = text, None, None
        self.pipesize, self.process_group = -1, None
        self._waitpid_lock, self._sigint_wait_secs = threading.Lock(), 0.25
        self._child_created, self._communication_started, self._input = False, False, None
        self.stdout, out = _output(1, stdout, text=text)
        self.stderr, err = _output(2, stderr, text=text)
        try:
            environment = os.environ if env is None else env
            self.pid = template.fork(command, environment, pass_fds, (out, err))
            self._child_created = True
        finally:
            for given, fd in ((stdout, out), (stderr, err)):
                if given is not None:
                    os.close(fd)


def _output(own: int, given: int | None, *, text: bool) -> tuple[Any, int]:
    """What this process reads, and the descriptor that the new one writes to."""
    if given is None:
        return None, own
    if given == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    assert given == subprocess.PIPE
    read, write = os.pipe()
    return open(read, "r" if text else "rb"), write


class WarmSubprocess(ModuleType):
    """A stand-in for the module `subprocess`: `Popen` and `run` fork a template.

    Where a fork would differ from a fresh interpreter, for the sake of its environment, the
    interpreter is started.
    """

    def __init__(self, template: Template | None = None) -> None:
        super().__init__("subprocess")
        self._template = template

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:  # noqa: N802
        """As `subprocess.Popen`, of the options that `WarmPopen` knows."""
        self.start()
        assert self._template is not None
        if self._template.serves(options.get("env") or os.environ):
            return WarmPopen(self._template, command, **options)
        return subprocess.Popen(command, **options)

    def run(
        self, command: list[str], *, check: bool = False, capture_output: bool = False, **more: Any
    ) -> subprocess.CompletedProcess[Any]:
        """As `subprocess.run`."""
        if capture_output:
            more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.Popen(command, **more) as process:
            try:
                out, err = process.communicate()
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, out, err)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def start(self) -> None:
        """Start the template, if it has not been."""
        if self._template is None:
            self._template = Template()

    def close(self) -> None:
        """End the template."""
        if self._template is not None:
            self._template.close()
            self._template = None


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_FROM_THE_START) and name not in _READ_LATER
    }


def main(fd: int) -> None:
    """The template: import, then fork a worker for each request until the socket closes."""
    for name in _IMPORTS:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("the template has threads, and a fork of it would lack them.")
    with socket.socket(fileno=fd) as requests:
        while True:
            if (asked := _asked(requests)) is None:
                return
            request, rights = asked
            told, tells = os.pipe()
            between = os.fork()
            if not between:
                worker = os.fork()
                if not worker:
                    os.close(told)
                    os.close(tells)
                    requests.close()
                    break
                os.write(tells, str(worker).encode())
                os._exit(0)
            os.close(tells)
            for received in rights:
                os.close(received)
            # Only when the process between is gone is the worker a child of who asked.
            os.waitpid(between, 0)
            try:
                requests.send(os.read(told, 64))
            except ConnectionError:  # who asked was ended meanwhile
                return
            os.close(told)
    _become(request, list(rights))


def _asked(requests: socket.socket) -> tuple[dict[str, Any], array.array[int]] | None:
    """The next request and its descriptors; None if nobody asks any more."""
    try:
        message, ancillary, _, _ = requests.recvmsg(
            _REQUEST_BYTES, socket.CMSG_SPACE(4 * _MOST_FDS)
        )
    except ConnectionError:  # who asked was ended before it took its answer
        return None
    if not message:
        return None
    rights = array.array("i")
    for _, _, data in ancillary:
        rights.frombytes(data)
    return json.loads(message), rights


def _become(request: dict[str, Any], rights: list[int]) -> None:
    """In the worker: run the command's `-c` text as a fresh interpreter would."""
    targets = [1, 2, *request["fds"]]
    for place, received in enumerate(rights):  # out of each other's way first
        os.dup2(received, _HIGH_FD + place)
        os.close(received)
    for place, target in enumerate(targets):
        os.dup2(_HIGH_FD + place, target)
        os.close(_HIGH_FD + place)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["directory"])
    os.sched_setaffinity(0, request["cpus"])
    while os.getppid() != request["parent"]:  # until the process between is gone
        if not os.path.exists(f"/proc/{request['parent']}"):  # who asked was killed meanwhile
            return
        time.sleep(0.0005)
    random.seed()
    importlib.import_module("numpy").random.seed()
    importlib.import_module("torch").seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, kind, what, *arguments = request["command"]
    sys.modules["__main__"] = own = ModuleType("__main__")
    if kind == "-m":
        sys.argv = [what, *arguments]
        sys.modules.pop(what, None)  # the module is run anew, as the main one
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(what, "<string>", "exec"), own.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
