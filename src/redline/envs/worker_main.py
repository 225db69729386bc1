"""The inside of a worker process; `supervisor` is its other end.

Started as a fresh interpreter that never imports the caller's main script, so it works
under any start method and from a script without `if __name__ == "__main__"`.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle

from redline.envs.shared_memory import SharedBlock
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


def main(arguments: list[str]) -> None:
    """Run a worker until it is told to close or its parent is gone."""
    index, parent, conn_fd, dump_fd, life_fd, memory_fd = map(int, arguments)
    faulthandler.register(DUMP_SIGNAL, file=dump_fd, all_threads=True)
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    # SIGTERM too, which batch systems send to the whole group. SIGKILL is what ends a worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(parent, life_fd), daemon=True).start()
    memory = SharedBlock(memory_fd) if memory_fd >= 0 else None
    connection = Connection(conn_fd)
    try:
        transmit(connection, (ALIVE, None))
        _serve(connection, WorkerLink(index, memory))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the parent is gone: nobody to tell
    sys.stdout.flush()


def _serve(connection: Connection, link: WorkerLink) -> None:
    payload = connection.recv_bytes()
    kind, answer = _guarded(lambda: cloudpickle.loads(payload)(link))
    transmit(connection, (kind, None if kind == OK else answer))
    if kind != OK:
        return
    handler: Handler = answer
    while kind != FAILED:
        command, payload = connection.recv()
        if command == CLOSE:
            handler.close()
            return
        kind, answer = _guarded(functools.partial(handler.handle, command, payload))
        transmit(connection, (kind, answer))


def _guarded(function: Callable[[], Any]) -> tuple[str, Any]:
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
    while os.getppid() == parent:
        readable, _, _ = select.select([life_fd], [], [], _PARENT_CHECK_S)
        if readable:  # end of file: the parent's end closed with it
            break
    os._exit(1)
