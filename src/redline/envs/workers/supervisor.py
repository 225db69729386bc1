"""Worker processes that cannot hang their parent, outlive it or leave anything behind.

`WorkerGroup` starts one fresh interpreter per worker, sends each a factory (by cloudpickle)
and from then on exchanges commands and replies with the handler that the factory made:

    class Handler:
        def __init__(self, link: WorkerLink) -> None: ...
        def handle(self, command: str, payload: Any) -> Any: ...
        def close(self) -> None: ...

    group = WorkerGroup([make_handler] * 2, titles=["envs 0 .. 3", "envs 4 .. 7"])
    replies = group.call("step")                  # send to all, wait for all
    group.send(0, "collect", payload)             # or without waiting
    done = group.receive_ready(timeout_s=0.1)     # {worker: reply} of those that answered
    group.begin_step(code)                        # or by signal, with data in shared memory only:
    numbers = group.finish_step()                 # what each handler's step(code) answered
    group.post("step"), group.post("step")        # or several commands ahead,
    replies = group.gather("step")                # answered one after the other
    group.close()

Large data travels in a `SharedBlock`, which has no name in the file system. What goes wrong:

| in the worker | in the parent |
|---|---|
| a RedlineError is raised | the same error, once all have answered; the group goes on |
| anything else is raised | WorkerError with the traceback |
| it is killed or exits | WorkerError with the signal or exit status |
| it does not answer in time, or hangs | WorkerError with the stack of each thread |
| it has not ended `timeout_s` after `close` | it is killed, and a line on stderr says so |
| it still owes a reply 2 s after `close` | the same: nobody waits for that reply any more |

A command that may take long (starting, resetting, restoring) has a long limit, but a worker
that meanwhile uses no processor time for `timeout_s` hangs: it has failed, too.

Every WorkerError ends the whole group at once. A worker whose parent is gone, even by
SIGKILL, exits within about a second.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import cloudpickle

from redline.envs.workers.descriptors import make_room_for
from redline.envs.workers.hang_timeout import HangTimeout
from redline.envs.workers.shared_memory import SharedBlock
from redline.envs.workers.worker_main import (
    ALIVE,
    CLOSE,
    FAILED,
    OK,
    REFUSED,
    Factory,
    Handler,
    WorkerLink,
    transmit,
)
from redline.envs.workers.worker_process import SharedByWorkers, WorkerProcess, end_processes
from redline.errors import ConfigError, RedlineError, WorkerError

__all__ = ["Factory", "Handler", "SharedBlock", "WorkerGroup", "WorkerLink", "pickled"]

_EXIT_GRACE_S = 2.0
_END_CHECK_S = 0.02
_DUMP_WAIT_S = 1.0
_LEAST_STANDSTILL_S = 8.0  # a machine under load may leave a process without a turn for a while


class WorkerGroup:
    """Worker processes under supervision; the module docstring tells how to use it.

    Args:
        factories: one per worker; makes its handler there.
        titles: what each worker works on, for messages.
        memory: shared with all workers; owned by the caller.
        timeout_s: seconds after which a worker that owes a reply has failed.
        timeout_option: what the user calls that setting.
        start_timeout_s: the same for starting and making the handler.
        cpus: the cores that each may run on; None: those of this process.

    Raises:
        ConfigError: if a factory cannot be sent to another process.
        WorkerError: if a worker does not start.
    """

    def __init__(
        self,
        factories: Sequence[Factory],
        *,
        titles: Sequence[str],
        memory: SharedBlock | None = None,
        timeout_s: float = 8.0,
        timeout_option: str = "worker_timeout_s",
        start_timeout_s: float = 120.0,
        cpus: Sequence[Collection[int]] | None = None,
    ) -> None:
        payloads = [pickled(factory) for factory in factories]
        make_room_for(len(payloads))
        self._timeout_s, self._timeout_option = timeout_s, timeout_option
        self._poller = select.poll()
        self._workers: list[WorkerProcess] = []
        self._by_fd: dict[int, WorkerProcess] = {}
        self._shared = SharedByWorkers(len(payloads), memory)
        self._finalizer = weakref.finalize(
            self, end_processes, self._workers, self._shared, os.getpid()
        )
        self._num_calls = 0
        self._call_poller = select.poll()
        self._call_poller.register(self._shared.done.read_fd, select.POLLIN)
        try:
            for index, title in enumerate(titles):
                worker = WorkerProcess(
                    index, title, self._shared, None if cpus is None else cpus[index]
                )
                self._workers.append(worker)
                self._by_fd[worker.connection.fileno()] = worker
                self._poller.register(worker.connection.fileno(), select.POLLIN)
                self._call_poller.register(worker.connection.fileno(), select.POLLIN)
            self._start(payloads, start_timeout_s)
        except BaseException:
            self.kill()
            raise

    def _start(self, payloads: list[bytes], timeout_s: float) -> None:
        for worker in self._workers:
            worker.num_pending += 1
        self._gather(self._workers, timeout_s, "start", wanted=ALIVE)
        for worker, payload in zip(self._workers, payloads, strict=True):
            self._transmit(worker, lambda c, p=payload: c.send_bytes(p))
        self._gather(self._workers, timeout_s, "start")

    @property
    def num_workers(self) -> int:
        """How many workers there are; 0 once closed."""
        return len(self._workers)

    def send(self, worker: int, command: str, payload: Any = None) -> None:
        """Give worker number `worker` a command, without waiting for the reply.

        Raises:
            WorkerError: if it is gone.
        """
        target = self._living(worker)
        self._transmit(target, lambda connection: transmit(connection, (command, payload)))

    def call(
        self,
        command: str,
        payloads: Sequence[Any] | None = None,
        timeout_s: float | None = None,
        heartbeat: Callable[[int], int] | None = None,
    ) -> list[Any]:
        """Give all workers a command and wait for all replies.

        Args:
            command: the handlers' command.
            payloads: one per worker; None sends None to each.
            timeout_s: instead of the group's own, where that is shorter.
            heartbeat: worker -> a number that changes with its progress; a worker has failed
                when it did not change for the whole time.

        Returns:
            The replies, in the workers' order.

        Raises:
            RedlineError: the first that a handler raised.
            WorkerError: if a worker raised anything else, died or did not answer.
        """
        self.post(command, payloads)
        return self.gather(command, timeout_s, heartbeat)

    def post(self, command: str, payloads: Sequence[Any] | None = None) -> None:
        """Give all workers a command and go on; `gather` collects the replies.

        Several may be under way; each worker answers them one after the other.
        """
        self._living(0)
        for index, worker in enumerate(self._workers):
            payload = None if payloads is None else payloads[index]
            self._transmit(worker, lambda connection, p=payload: transmit(connection, (command, p)))

    def gather(
        self,
        command: str,
        timeout_s: float | None = None,
        heartbeat: Callable[[int], int] | None = None,
    ) -> list[Any]:
        """Every worker's reply to the oldest command that was posted; as for `call`."""
        self._living(0)
        limit = max(timeout_s or 0.0, self._timeout_s)
        replies = self._gather(self._workers, limit, command, heartbeat=heartbeat)
        return [replies[worker.index] for worker in self._workers]

    def receive(self, worker: int, timeout_s: float | None = None) -> Any:
        """Wait for one worker's next reply; raises as `call` does."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        return self._gather([self._living(worker)], limit, "a command")[worker]

    def receive_ready(self, timeout_s: float = 0.0) -> dict[int, Any]:
        """The replies that are there, after waiting up to `timeout_s` for the first.

        Raises as `call` does, except that slowness is no failure.
        """
        self._living(0)
        ready = self._poll(timeout_s)
        return self._take([worker for worker in ready if worker.num_pending], OK)

    def begin_step(self, code: int) -> None:
        """Have every handler do `step(code)`, without waiting; what it needs is shared memory.

        Raises:
            WorkerError: if the group is closed.
        """
        self._living(0)
        self._num_calls += 1
        for worker in self._workers:
            worker.num_pending += 1
            self._shared.words.call(worker.index, self._num_calls, code)
            worker.go.send()

    def finish_step(self) -> list[int]:
        """Wait until every handler has answered `begin_step`; raises as `call` does.

        Returns:
            What each answered.
        """
        self._living(0)
        shared, number = self._shared, self._num_calls
        if shared.spin_s > 0:
            shared.words.watch_for_finish(len(self._workers) - 1, number, shared.spin_s)
        timeout = HangTimeout(range(len(self._workers)), self._timeout_s, None)
        waiting = {worker.index: worker for worker in self._workers}
        refusals: dict[int, RedlineError] = {}
        done_fd = shared.done.read_fd
        while waiting:
            wait_s = max(0.0, timeout.next_check_s(waiting))
            for fd, _ in self._call_poller.poll(wait_s * 1000.0):
                if fd == done_fd:
                    shared.done.clear()
                else:
                    # A worker that was called and writes instead has failed, or refuses.
                    self._take_or_refuse(self._by_fd[fd], refusals)
            for index in [i for i in waiting if shared.words.finished(i) == number]:
                waiting.pop(index).num_pending -= 1
            for index in refusals:
                waiting.pop(index, None)
            self._raise_if_hung(timeout, waiting, self._timeout_s, "step")
        if refusals:
            raise refusals[min(refusals)]
        return [shared.words.result(worker.index) for worker in self._workers]

    def _take_or_refuse(
        self, worker: WorkerProcess, refusals: dict[int, RedlineError], wanted: str = OK
    ) -> dict[int, Any]:
        """Its reply, unless it is an error that leaves it running, which goes to `refusals`."""
        try:
            return self._take([worker], wanted)
        except WorkerError:
            raise
        except RedlineError as error:
            refusals[worker.index] = error
            return {}

    def close(self) -> None:
        """Let every worker close its handler and exit; kill those that do not in time.

        One that is busy with a command gets a short time only: whoever interrupts a program
        does not wait for a long step.
        """
        for worker in self._workers:
            if worker.process.poll() is None:
                try:
                    transmit(worker.connection, (CLOSE, None))
                except OSError:
                    continue  # it is gone already, which is what is wanted
        begin, limit_s = time.monotonic(), max(_EXIT_GRACE_S, self._timeout_s)
        self._wait_for_ends(self._workers, begin + _EXIT_GRACE_S)
        idle = [worker for worker in self._workers if not worker.num_pending]
        self._wait_for_ends(idle, begin + limit_s)
        late = [worker for worker in self._workers if worker.process.poll() is None]
        self.kill()
        sys.stderr.write(
            killed_while_closing(
                "killed",
                [str(worker) for worker in late if worker.num_pending],
                [str(worker) for worker in late if not worker.num_pending],
                (_EXIT_GRACE_S, limit_s),
                self._timeout_option,
            )
        )

    def _wait_for_ends(self, workers: Sequence[WorkerProcess], deadline: float) -> None:
        """Wait until these are gone; reads what all still answer, as a full pipe holds them up."""
        poller = select.poll()
        for fd in self._by_fd:
            poller.register(fd, select.POLLIN)
        while any(worker.process.poll() is None for worker in workers):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            for fd, _ in poller.poll(min(left_s, _END_CHECK_S) * 1000.0):
                try:
                    self._by_fd[fd].connection.recv_bytes()
                except (EOFError, OSError):
                    poller.unregister(fd)
                else:
                    self._by_fd[fd].num_pending -= 1

    def interrupt(self) -> None:
        """Kill the workers while another thread waits for them: it gets a WorkerError."""
        for worker in tuple(self._workers):
            worker.process.kill()

    def kill(self) -> None:
        """End every worker at once."""
        self._finalizer()
        self._by_fd.clear()

    def _living(self, worker: int) -> WorkerProcess:
        if not self._workers:
            raise WorkerError("the workers are closed; make a new group.")
        return self._workers[worker]

    def _transmit(self, worker: WorkerProcess, send: Any) -> None:
        try:
            send(worker.connection)
        except OSError as error:
            # A worker that was given several commands may have failed at an earlier one.
            while worker.num_pending and worker.connection.poll():
                self._take([worker], OK)
            raise self._died(worker) from error
        worker.num_pending += 1

    def _gather(
        self,
        workers: Iterable[WorkerProcess],
        timeout_s: float,
        command: str,
        wanted: str = OK,
        heartbeat: Callable[[int], int] | None = None,
    ) -> dict[int, Any]:
        """One reply of each of `workers`, watching all the others meanwhile."""
        replies: dict[int, Any] = {}
        refusals: dict[int, RedlineError] = {}
        for early, refused in [worker.inbox.popleft() for worker in workers if worker.inbox]:
            replies |= early
            refusals |= refused
        known = {*replies, *refusals}
        waiting = {worker.index: worker for worker in workers if worker.index not in known}
        standstill_s = max(self._timeout_s, _LEAST_STANDSTILL_S)
        if heartbeat is None and timeout_s > standstill_s and self._workers[0].cpu_time() >= 0:
            timeout = HangTimeout(
                waiting, standstill_s, lambda index: self._workers[index].cpu_time(), timeout_s
            )
        else:
            timeout = HangTimeout(waiting, timeout_s, heartbeat)
        while waiting:
            ready = self._ready(waiting, timeout.next_check_s(waiting))
            if not ready:
                self._raise_if_hung(timeout, waiting, timeout_s, command)
            for worker in ready:
                del waiting[worker.index]
                replies |= self._take_or_refuse(worker, refusals, wanted)
        if refusals:
            raise refusals[min(refusals)]
        return replies

    def _ready(self, waiting: Collection[int], timeout_s: float) -> list[WorkerProcess]:
        """Those of `waiting` with a reply to read; what others reply goes to their inbox."""
        ready = self._poll(timeout_s)
        for worker in ready:
            if worker.index not in waiting:
                refused: dict[int, RedlineError] = {}
                replies = self._take_or_refuse(worker, refused)
                worker.inbox.append((replies, refused))
        return [worker for worker in ready if worker.index in waiting]

    def _poll(self, timeout_s: float) -> list[WorkerProcess]:
        """Workers with a reply (or an end) to read; idle ones only if they are gone."""
        events = self._poller.poll(max(0.0, timeout_s) * 1000.0)
        found = []
        for fd, event in events:
            worker = self._by_fd[fd]
            if worker.num_pending == 0 and event & (select.POLLHUP | select.POLLERR):
                raise self._died(worker)
            found.append(worker)
        return found

    def _take(self, workers: Iterable[WorkerProcess], wanted: str) -> dict[int, Any]:
        replies = {}
        for worker in workers:
            try:
                kind, answer = worker.connection.recv()
            except (EOFError, OSError) as error:
                raise self._died(worker) from error
            worker.num_pending -= 1
            if kind == FAILED:
                message = f"{worker} raised:\n{answer}"
                self.kill()
                raise WorkerError(message)
            if kind == REFUSED:
                error, text = answer
                error.add_note(f"Raised in {worker}:\n{text}")
                if wanted != OK:
                    self.kill()
                raise error
            replies[worker.index] = answer
        return replies

    def _died(self, worker: WorkerProcess) -> WorkerError:
        worker.wait(_EXIT_GRACE_S)
        status = worker.process.returncode
        self.kill()
        if status is None:
            end = "closed its pipe but did not exit"
        elif status < 0:
            end = f"was killed by {signal.Signals(-status).name}"
            if status == -signal.SIGKILL:
                end += " (the kernel does that when memory runs out)"
        else:
            end = f"exited with status {status}; its own messages are above"
        return WorkerError(f"{worker} {end}. The other workers were ended.")

    def _raise_if_hung(
        self,
        timeout: HangTimeout,
        waiting: dict[int, WorkerProcess],
        timeout_s: float,
        command: str,
    ) -> None:
        """End the group if one of `waiting` has hung, with the Python stacks of those that have."""
        hung = timeout.hung(waiting)
        if not hung:
            return
        workers, idle_s = [waiting[index] for index in hung], timeout.idle_s(hung)
        deadline = time.monotonic() + _DUMP_WAIT_S  # for all of them together
        stacks = [f"{worker}:\n{worker.stack(deadline)}" for worker in workers[:4]]
        names = ", ".join(map(str, workers))
        self.kill()
        option = "start_timeout_s" if command == "start" else self._timeout_option
        reason = f"did not answer {command!r} within {option}={timeout_s:g} s"
        if idle_s < 0.95 * timeout_s:
            option = self._timeout_option
            reason = f"stood still in {command!r}: no answer and no work done for {idle_s:.0f} s"
        raise WorkerError(
            f"{names} {reason}; all workers were ended. Raise {option} if it may take longer. The "
            f"Python stack was:\n" + "\n".join(stacks)
        )


def killed_while_closing(
    verb: str,
    busy: Sequence[str],
    closing: Sequence[str],
    limits_s: tuple[float, float],
    option: str,
) -> str:
    """What to say of workers that were ended before they had closed their environments.

    Args:
        verb: what was done to them.
        busy: those that were still at work on a command.
        closing: the others.
        limits_s: how long the busy ones had, and the others.
        option: what the user calls the second limit.
    """
    told = ""
    if busy:
        told += (
            f"redline: {verb} {', '.join(busy)}, still busy {limits_s[0]:g} s after the end: "
            f"close() of the environments was not called.\n"
        )
    if closing:
        told += (
            f"redline: {verb} {', '.join(closing)}, which did not end within {limits_s[1]:g} s: "
            f"what close() of the environments does may be incomplete. Raise {option} if it may "
            f"take longer.\n"
        )
    return told


def pickled(factory: Factory) -> bytes:
    """What makes a worker's handler, as bytes.

    Raises:
        ConfigError: if it cannot be sent to another process.
    """
    try:
        return cloudpickle.dumps(factory)
    except Exception as error:  # anything may go wrong in a user's own __reduce__
        raise ConfigError(
            f"what makes the environments cannot be sent to a worker process: {error}. Make "
            f"files, locks and simulators inside the callable, or use the gymnasium back end."
        ) from error
