"""The parent's side of one worker process, and what the workers of a group share."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection
from multiprocessing import Pipe
from typing import Any

from redline.envs.workers.shared_memory import SharedBlock
from redline.envs.workers.signals import CallWords, Signal
from redline.envs.workers.worker_main import DUMP_SIGNAL, WorkerStart
from redline.usable_cores import usable_cpus

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from redline.envs.workers.worker_main import main; main(sys.argv[2:])"
)
# Many workers with as many threads as there are cores each would only get in each other's way.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LAST_PART_S = 0.5  # without another one; a busy machine may take a worker off its core between two
_SPIN_S = 100e-6  # about what a wake-up costs on a busy machine


def _import_path() -> list[str]:
    """The folders that this process imports from; Python skips what is no text, as a `Path`."""
    return [entry for entry in sys.path if isinstance(entry, str)]


class SharedByWorkers:
    """What the workers of a group have in common: its memory, and the words and signal of calls.

    Whoever waits for a call's end watches for it first if every process can have a core of its
    own; where cores are short, that would only keep the others from working.
    """

    def __init__(self, num_workers: int, memory: SharedBlock | None) -> None:
        self.num_workers, self.memory = num_workers, memory
        self.words_block, self.done = SharedBlock(), Signal()
        self.words_block.resize(CallWords.nbytes(num_workers))
        self.words = CallWords(self.words_block.fd, num_workers)
        self.spin_s = _SPIN_S if usable_cpus() > num_workers else 0.0

    def close(self) -> None:
        """Give the file descriptors back."""
        self.words_block.close()
        self.done.close()


class WorkerProcess:
    """One process, its pipes, and what it owes.

    Args:
        index: its number in the group.
        title: what it works on, for messages.
        shared: with the others of its group.
        cpus: the cores it may run on; None: those of this process.
    """

    def __init__(
        self, index: int, title: str, shared: SharedByWorkers, cpus: Collection[int] | None
    ) -> None:
        self.index, self.title = index, title
        self.num_pending = 0
        self.inbox: deque[Any] = deque()  # what it answered while others were waited for
        ours, theirs = Pipe()
        self.connection: Any = ours
        self.dump_fd, dump_write_fd = os.pipe()
        life_read_fd, self.life_fd = os.pipe()
        self.go = Signal()
        start = WorkerStart(
            index=index,
            num_workers=shared.num_workers,
            parent_pid=os.getpid(),
            connection_fd=theirs.fileno(),
            dump_fd=dump_write_fd,
            life_fd=life_read_fd,
            words_fd=shared.words_block.fd,
            go_fd=self.go.read_fd,
            done_fd=shared.done.write_fd,
            memory_fd=-1 if shared.memory is None else shared.memory.fd,
            spin_s=shared.spin_s,
            cpus=tuple(sorted(cpus)) if cpus else (),
        )
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(_import_path()), start.to_json()],
                stdin=subprocess.DEVNULL,
                pass_fds=start.fds(),
                env=dict.fromkeys(_ONE_THREAD, "1") | os.environ,
            )
        finally:
            theirs.close()
            os.close(dump_write_fd)
            os.close(life_read_fd)

    def __str__(self) -> str:
        return f"worker {self.index} ({self.title})"

    def cpu_time(self) -> int:
        """Clock ticks that it and its threads have run; -1 where the system does not say."""
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return -1
        return int(fields[11]) + int(fields[12])

    def stack(self, limit: float) -> str:
        """The Python stack of a worker that does not answer, as faulthandler prints it.

        Args:
            limit: when to wait no longer, by `time.monotonic`; its last part is known by the 0.5 s
                without another one.
        """
        if self.process.poll() is not None:
            return "(it is gone)"
        self.process.send_signal(DUMP_SIGNAL)
        text, until = b"", limit
        # `select.select` refuses descriptors from 1024 on.
        poller = select.poll()
        poller.register(self.dump_fd, select.POLLIN)
        while poller.poll(max(0.0, until - time.monotonic()) * 1000.0):
            part = os.read(self.dump_fd, 65536)
            if not part:
                break
            text += part
            until = min(limit, time.monotonic() + _LAST_PART_S)
        return text.decode(errors="replace").strip() or "(none was given)"

    def wait(self, timeout_s: float) -> None:
        """Wait so long for its end."""
        try:
            self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return

    def close_pipes(self) -> None:
        """Give the file descriptors back."""
        self.connection.close()
        os.close(self.dump_fd)
        os.close(self.life_fd)
        self.go.close()


def end_processes(workers: list[WorkerProcess], shared: SharedByWorkers, owner: int) -> None:
    """Kill and reap, unless this is a fork of the process `owner` whose workers they are."""
    if os.getpid() != owner:
        return
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.close_pipes()
    workers.clear()
    shared.close()
