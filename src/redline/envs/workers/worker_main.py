"""The inside of a worker process; `supervisor` is its other end.

Started as a fresh interpreter that never imports the caller's main script, so it works
under any start method and from a script without `if __name__ == "__main__"`.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle

from redline.envs.workers.shared_memory import SharedBlock
from redline.envs.workers.signals import CallWords, Signal
from redline.errors import RedlineError

CLOSE = "__close__"
ALIVE, OK, REFUSED, FAILED = "alive", "ok", "refused", "failed"
DUMP_SIGNAL = signal.SIGUSR1
_PARENT_CHECK_S = 1.0


class Handler(Protocol):
    """What a worker does: answers commands one after the other."""

    def handle(self, command: str, payload: Any) -> Any:
        """Answer one command; the reply is pickled.

        A RedlineError is raised again in the parent and leaves the worker running; any other
        exception ends the whole group.
        """
        ...

    def close(self) -> None:
        """Free what the worker holds, before it exits."""
        ...


class StepHandler(Handler, Protocol):
    """A handler that can be called by signal as well."""

    def step(self, code: int) -> int:
        """Answer `WorkerGroup.begin_step(code)`, whose data lies in shared memory.

        Errors are treated as in `handle`.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """What a worker's factory is told.

    Attributes:
        index: number of the worker in its group, from 0.
        memory: the group's shared memory, if it has any.
    """

    index: int
    memory: SharedBlock | None


Factory = Callable[[WorkerLink], Handler]


def transmit(connection: Connection, message: Any) -> None:
    """Send a message by value.

    `Connection.send` would hand tensors over through files and sockets of their own, which
    needs a key that these processes do not share, and leaks if one of them is killed.
    """
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker's process is started with; file descriptors are inherited.

    Attributes:
        index: number of the worker in its group.
        num_workers: size of the group.
        parent_pid: who started it.
        connection_fd: commands and replies.
        dump_fd: takes the stacks of a worker that hangs.
        life_fd: reaches its end of file when the parent is gone.
        words_fd: the group's `CallWords`.
        go_fd: where this worker's signal arrives.
        done_fd: where the parent is sent its signal.
        memory_fd: shared memory; -1 if there is none.
        spin_s: how long to watch for a call before sleeping.
        cpus: the cores to run on; none: those of the parent.
    """

    index: int
    num_workers: int
    parent_pid: int
    connection_fd: int
    dump_fd: int
    life_fd: int
    words_fd: int
    go_fd: int
    done_fd: int
    memory_fd: int
    spin_s: float
    cpus: tuple[int, ...]

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WorkerStart:
        """What `to_json` gave."""
        values = json.loads(text)
        return WorkerStart(**(values | {"cpus": tuple(values["cpus"])}))

    def fds(self) -> list[int]:
        """What the process must inherit."""
        fds = [self.connection_fd, self.dump_fd, self.life_fd, self.words_fd, self.go_fd]
        fds.append(self.done_fd)
        return fds if self.memory_fd < 0 else [*fds, self.memory_fd]


class _Receiver:
    """Where a worker waits for what comes next: a command, or a call by signal."""

    def __init__(self, start: WorkerStart, connection: Connection) -> None:
        self._start, self._connection = start, connection
        self._words = CallWords(start.words_fd, start.num_workers)
        self._go = Signal((start.go_fd, start.go_fd))
        self._done = Signal((start.done_fd, start.done_fd))
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)
        self._poller.register(start.go_fd, select.POLLIN)
        self._called_last = False

    def wait(self) -> int | None:
        """The code of a call; None if there is a command to receive."""
        if self._called_last and self._start.spin_s > 0:
            self._words.watch_for_call(self._start.index, self._start.spin_s)
        ready = {fd for fd, _ in self._poller.poll()}
        self._called_last = self._start.go_fd in ready
        if not self._called_last:
            return None
        self._go.clear()
        return self._words.code(self._start.index)

    def finish(self, result: int) -> None:
        """Answer a call."""
        self._words.finish(self._start.index, result)
        self._done.send()


def main(arguments: list[str]) -> None:
    """Run a worker until it is told to close or its parent is gone."""
    start = WorkerStart.from_json(arguments[0])
    if start.cpus:
        os.sched_setaffinity(0, start.cpus)
    faulthandler.register(DUMP_SIGNAL, file=start.dump_fd, all_threads=True)
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    # SIGTERM too, which batch systems send to the whole group, and SIGHUP of a terminal that is
    # closed. SIGKILL is what ends a worker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watcher = threading.Thread(
        target=_exit_with_parent, args=(start.parent_pid, start.life_fd), daemon=True
    )
    watcher.start()
    memory = SharedBlock(start.memory_fd) if start.memory_fd >= 0 else None
    connection = Connection(start.connection_fd)
    try:
        transmit(connection, (ALIVE, None))
        _serve(connection, WorkerLink(start.index, memory), _Receiver(start, connection))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the parent is gone: nobody to tell
    sys.stdout.flush()


def _serve(connection: Connection, link: WorkerLink, receiver: _Receiver) -> None:
    payload = connection.recv_bytes()
    kind, answer = guarded(lambda: cloudpickle.loads(payload)(link))
    transmit(connection, (kind, None if kind == OK else answer))
    if kind != OK:
        return
    handler: StepHandler = answer
    while kind != FAILED:
        code = receiver.wait()
        if code is not None:
            kind, answer = guarded(functools.partial(handler.step, code))
            if kind == OK:
                receiver.finish(answer)
            else:
                transmit(connection, (kind, answer))
            continue
        command, payload = connection.recv()
        if command == CLOSE:
            _close(handler)
            return
        kind, answer = guarded(functools.partial(handler.handle, command, payload))
        transmit(connection, (kind, answer))


def _close(handler: Handler) -> None:
    """Close it; nobody waits for a reply, so what goes wrong is said here."""
    try:
        handler.close()
    except RedlineError as error:
        sys.stderr.write(f"redline: a worker: {error}\n")


def guarded(function: Callable[[], Any]) -> tuple[str, Any]:
    """(OK, result), or the kind of failure with what to tell the parent."""
    try:
        return OK, function()
    except RedlineError as error:
        return REFUSED, (_picklable(error), traceback.format_exc())
    except BaseException:  # noqa: BLE001 (told to the parent, whatever it is)
        return FAILED, traceback.format_exc()


def _picklable(error: RedlineError) -> RedlineError:
    """The error itself, or its message alone if it would not survive the trip."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever its constructor does)
        return RedlineError(f"{type(error).__name__}: {error}")
    return error


def _exit_with_parent(parent: int, life_fd: int) -> None:
    """Leave at once when the parent is gone, however it went and whatever else runs here."""
    poller = select.poll()  # `select.select` refuses descriptors from 1024 on
    poller.register(life_fd, select.POLLIN)
    while os.getppid() == parent:
        if poller.poll(_PARENT_CHECK_S * 1000.0):  # end of file: the parent's end closed with it
            break
    os._exit(1)
