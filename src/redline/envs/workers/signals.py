"""Signals between processes: words in shared memory, and an eventfd to wake the other side.

Pickling a command, sending it through a socket and reading the reply costs more than the step
of many an environment. Here a step takes two words in shared memory and one write to an eventfd
each way:

    parent: words[w] = (code, number of the call), send go[w]   ->  worker w wakes and works
    worker: words[w] = (result, number of the call), send done  ->  the parent wakes

A waiter may watch its word for some microseconds before it sleeps, which saves the wake-up.
It clears the signal in any case, so that none is left over and none can be lost.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd is written; a pipe takes it as well
_WORDS = 8  # int64 per worker: a cache line, so that no two processes write the same one
_CALL, _CODE, _DONE, _RESULT = 0, 1, 2, 3
_CHECKS_PER_LOOK = 64  # reads of the word between two looks at the clock


class Signal:
    """Wakes one other process.

    Args:
        fds: (to read, to write) of a signal that another process created; None creates one.
    """

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        if fds is not None:
            self.read_fd, self.write_fd = fds
        elif hasattr(os, "eventfd"):
            self.read_fd = self.write_fd = os.eventfd(0)
        else:
            self.read_fd, self.write_fd = os.pipe()

    @property
    def fds(self) -> tuple[int, int]:
        """(to read, to write), to be inherited; the same one twice for an eventfd."""
        return self.read_fd, self.write_fd

    def send(self) -> None:
        """Wake the other side, now or as soon as it waits."""
        os.write(self.write_fd, _ONE)

    def clear(self) -> None:
        """Wait until the signal was sent, and clear it, however often it was."""
        os.read(self.read_fd, 4096)

    def close(self) -> None:
        """Give the file descriptors back."""
        for fd in set(self.fds):
            os.close(fd)


class CallWords:
    """The words of W workers: who was called, and who has finished.

    Args:
        fd: of the memory, which all processes of a group share.
        num_workers: W.
    """

    def __init__(self, fd: int, num_workers: int) -> None:
        self._words = memoryview(mmap.mmap(fd, self.nbytes(num_workers))).cast("q")

    @staticmethod
    def nbytes(num_workers: int) -> int:
        """Size of the memory."""
        return num_workers * _WORDS * 8

    def call(self, worker: int, number: int, code: int) -> None:
        """Before the worker is sent its signal."""
        self._words[worker * _WORDS + _CODE] = code
        self._words[worker * _WORDS + _CALL] = number

    def code(self, worker: int) -> int:
        """What the worker was last called for."""
        return self._words[worker * _WORDS + _CODE]

    def finish(self, worker: int, result: int) -> None:
        """Before the parent is sent its signal."""
        begin = worker * _WORDS
        self._words[begin + _RESULT] = result
        self._words[begin + _DONE] = self._words[begin + _CALL]

    def finished(self, worker: int) -> int:
        """Number of the last call that the worker has finished."""
        return self._words[worker * _WORDS + _DONE]

    def result(self, worker: int) -> int:
        """What it answered."""
        return self._words[worker * _WORDS + _RESULT]

    def watch_for_call(self, worker: int, spin_s: float) -> None:
        """Return as soon as the worker is called, or when `spin_s` is over."""
        begin = worker * _WORDS
        self._watch(begin + _CALL, self._words[begin + _DONE] + 1, spin_s)

    def watch_for_finish(self, worker: int, number: int, spin_s: float) -> None:
        """Return as soon as the worker has finished call `number`, or when `spin_s` is over."""
        self._watch(worker * _WORDS + _DONE, number, spin_s)

    def _watch(self, index: int, number: int, spin_s: float) -> None:
        words, end = self._words, time.perf_counter() + spin_s
        while time.perf_counter() < end:
            for _ in range(_CHECKS_PER_LOOK):
                if words[index] >= number:
                    return
