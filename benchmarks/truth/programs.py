"""The programs: each a list of parts, each part some fixed work of a few milliseconds."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.truth.clocks import BUSY, WAITS, clocked, timed
from redline import profile


class Part(NamedTuple):
    """One marked part of a program; or, with `inside`, work that marks busy parts by itself."""

    name: str
    work: Callable[[], object]
    kind: str = BUSY
    inside: tuple[str, ...] = ()


def flat(n: int = 40_000) -> int:
    """Arithmetic that calls nothing."""
    total = i = 0
    while i < n:
        total += i & 3
        i += 1
    return total


class Box:
    """Something with attributes."""

    __slots__ = ("held", "value")

    def __init__(self, value: int) -> None:
        self.value, self.held = value, None

    def get(self) -> int:
        """A method that does next to nothing."""
        return self.value


def attributes(n: int = 25_000) -> int:
    """Attributes read and written."""
    box, i = Box(0), 0
    while i < n:
        box.value = box.value + 1
        i += 1
    return box.value


def lists(n: int = 25_000) -> int:
    """Indexing."""
    values, i, total = [1] * 64, 0, 0
    while i < n:
        total += values[i & 63]
        values[i & 31] = 1
        i += 1
    return total


def dictionaries(n: int = 25_000) -> int:
    """Look-ups by key."""
    values, i, total = dict.fromkeys(range(64), 1), 0, 0
    while i < n:
        total += values[i & 63]
        i += 1
    return total


def calls_of_python(n: int = 12_000) -> int:
    """Small functions."""

    def one(i: int) -> int:
        return i + 1

    i = 0
    while i < n:
        i = one(i)
    return i


def calls_of_builtins(n: int = 16_000) -> int:
    """Small native functions."""
    total = i = 0
    while i < n:
        total += abs(i)
        i += 1
    return total


def calls_of_methods(n: int = 12_000) -> int:
    """Methods of objects and of lists."""
    box, found, i = Box(1), [], 0
    while i < n:
        found.append(box.get())
        i += 1
    return len(found)


def recursion(n: int = 17) -> int:
    """Fibonacci's numbers."""
    return n if n < 2 else recursion(n - 1) + recursion(n - 2)


def deep_recursion(n: int = 600) -> int:
    """Down and up again."""

    def down(left: int) -> int:
        return 0 if left == 0 else 1 + down(left - 1)

    return sum(down(n) for _ in range(12))


def generators(n: int = 14_000) -> int:
    """A generator that feeds a loop."""

    def numbers() -> Iterator[int]:
        i = 0
        while i < n:
            yield i
            i += 1

    total = 0
    for i in numbers():
        total += i
    return total


def comprehensions(n: int = 2_000) -> int:
    """Lists made at once.

    Small ones: what takes more than 128 KiB the C library returns to the system each time, unless
    other memory lies above it, as that of a recorder does.
    """
    return len([i + 1 for i in range(n)]) + len({i: i for i in range(n // 2)})


def exceptions(n: int = 5_000) -> int:
    """Raised and caught."""
    caught = 0
    for _ in range(n):
        try:
            raise ValueError
        except ValueError:
            caught += 1
    return caught


def strings(n: int = 7_000) -> int:
    """Formatted and joined."""
    return len(",".join(f"{i}:{i + 1}" for i in range(n)))


def objects(n: int = 8_000) -> int:
    """Objects made and dropped."""
    total = 0
    for i in range(n):
        total += Box(i).value
    return total


def sorting(n: int = 9_000) -> list[int]:
    """Sorted by a function."""
    return sorted(range(n), key=lambda i: i * 7919 % 1009)


def spins(ns: int, n: int) -> Callable[[], object]:
    """Native calls of the ML back end's stand-in, each of a known time."""
    import torch

    spin: Any = torch.spin  # type: ignore[attr-defined]

    def work() -> None:
        for _ in range(n):
            spin(ns)

    return work


def calls_back(n: int = 400) -> None:
    """Native code that calls Python."""
    import torch

    for _ in range(n):
        torch.call(lambda: flat(40))  # type: ignore[attr-defined]


def sleeps() -> None:
    """Asleep for 3 ms."""
    time.sleep(0.003)


def a_lock_taken(by_with: bool) -> Callable[[], object]:
    """A lock that another thread holds for 4 ms."""
    lock, asked, taken = threading.Lock(), threading.Semaphore(0), threading.Semaphore(0)

    def hold() -> None:
        while True:
            asked.acquire()
            with lock:
                taken.release()
                time.sleep(0.004)

    threading.Thread(target=hold, daemon=True).start()

    def work() -> None:
        asked.release()
        taken.acquire()
        if by_with:
            with lock:
                return
        lock.acquire()
        lock.release()

    return work


def a_queue() -> Callable[[], object]:
    """Something that another thread puts there after 4 ms."""
    asked: queue.Queue[int] = queue.Queue()
    given: queue.Queue[int] = queue.Queue()

    def give() -> None:
        while True:
            asked.get()
            time.sleep(0.004)
            given.put(1)

    threading.Thread(target=give, daemon=True).start()

    def work() -> int:
        asked.put(1)
        return given.get()

    return work


def a_slow_reader(write: Callable[[bytes], int], read: Callable[[int], bytes]) -> Any:
    """Writing of 256 KiB into what holds less, read slowly by another thread."""

    def drain() -> None:
        while read(1 << 15):
            time.sleep(0.0007)

    threading.Thread(target=drain, daemon=True).start()
    data = bytes(1 << 18)

    def work() -> None:
        left = memoryview(data)
        while left:
            left = left[write(left) :]

    return work


def a_full_pipe() -> Callable[[], object]:
    """Into a pipe."""
    reading, writing = os.pipe()
    return a_slow_reader(lambda data: os.write(writing, data), lambda size: os.read(reading, size))


def a_full_socket() -> Callable[[], object]:
    """Into a socket."""
    a, b = socket.socketpair()
    for each in (a, b):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    return a_slow_reader(a.send, b.recv)


def a_file_lock() -> Callable[[], object]:
    """A file that another process has locked; it lets go 4 ms after it was asked."""
    number, path = tempfile.mkstemp()
    os.close(number)
    code = (
        "import fcntl, sys, time\n"
        f"file = open({path!r})\n"
        "for line in sys.stdin:\n"
        "    fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(0.004)\n"
        "    fcntl.flock(file, fcntl.LOCK_UN)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    file = open(path)  # noqa: SIM115  (as long as the program)

    def work() -> None:
        print(file=holder.stdin, flush=True)
        (holder.stdout or sys.stdin).readline()
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_UN)

    return work


def a_command() -> None:
    """A shell that sleeps."""
    os.system("sleep 0.01")


def a_subprocess() -> None:
    """A program that takes a while, waited for."""
    subprocess.run(["sleep", "0.01"], check=True)


def a_fork() -> None:
    """A child that sleeps, waited for: one that computes would be slower while it is recorded.

    As long as a short-lived worker: its recording takes some milliseconds to begin and to end.
    """
    pid = os.fork()
    if pid == 0:
        time.sleep(0.1)
        os._exit(0)
    os.waitpid(pid, 0)


def a_spawned_child() -> Callable[[], object]:
    """A child of multiprocessing that sleeps for 4 ms whenever it is asked."""
    ours, its = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=_sleep_when_asked, args=(its,), daemon=True).start()
    its.close()
    ours.recv()

    def work() -> None:
        ours.send(0.004)
        ours.recv()

    return work


def _sleep_when_asked(connection: Connection) -> None:
    connection.send("ready")
    while True:
        try:
            time.sleep(connection.recv())
        except EOFError:
            return
        connection.send("awake")


def tasks() -> None:
    """Two tasks of asyncio that take turns inside their marks."""

    async def one(name: str, work: Callable[[], object]) -> None:
        with profile.operation(name):
            for _ in range(4):
                with clocked(name):
                    work()
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(one("task a", lambda: flat(10_000)), one("task b", calls_of_builtins))

    asyncio.run(both())


def a_thread_that_works(work: Callable[[], object]) -> Callable[[], object]:
    """A thread that works whenever it is asked, while the main thread waits for it."""
    asked, done = threading.Semaphore(0), threading.Semaphore(0)

    def serve() -> None:
        while True:
            asked.acquire()
            with timed("other thread"):
                work()
            done.release()

    threading.Thread(target=serve, daemon=True).start()

    def ask() -> None:
        asked.release()
        done.acquire()

    return ask


PROGRAMS: dict[str, Callable[[], list[Part]]] = {
    "flat": lambda: [Part("flat", flat)],
    "attributes": lambda: [Part("attributes", attributes)],
    "lists": lambda: [Part("lists", lists)],
    "dictionaries": lambda: [Part("dictionaries", dictionaries)],
    "python calls": lambda: [Part("python calls", calls_of_python)],
    "builtin calls": lambda: [Part("builtin calls", calls_of_builtins)],
    "methods": lambda: [Part("methods", calls_of_methods)],
    "recursion": lambda: [Part("recursion", recursion)],
    "deep recursion": lambda: [Part("deep recursion", deep_recursion)],
    "generators": lambda: [Part("generators", generators)],
    "comprehensions": lambda: [Part("comprehensions", comprehensions)],
    "exceptions": lambda: [Part("exceptions", exceptions)],
    "strings": lambda: [Part("strings", strings)],
    "objects": lambda: [Part("objects", objects)],
    "sorting": lambda: [Part("sorting", sorting)],
    "large native calls": lambda: [Part("large native calls", spins(200_000, 10))],
    "small native calls": lambda: [Part("small native calls", spins(1_000, 1500))],
    "calls back": lambda: [Part("calls back", calls_back)],
    "mixed": lambda: [
        Part("flat", flat),
        Part("python calls", calls_of_python),
        Part("builtin calls", calls_of_builtins),
        Part("native", spins(5_000, 300)),
    ],
    "an agent": lambda: [
        Part("simulation", lambda: (calls_of_methods(4000), flat(10_000))),
        Part("inference", spins(3_000, 300)),
        Part("learning", spins(20_000, 150)),
    ],
    "flat and sleep": lambda: [Part("flat", flat), Part("sleep", sleeps, WAITS)],
    "sleep": lambda: [Part("sleep", sleeps, WAITS)],
    "lock": lambda: [Part("lock", a_lock_taken(by_with=False), WAITS), Part("flat", flat)],
    "with lock": lambda: [Part("with lock", a_lock_taken(by_with=True), WAITS), Part("flat", flat)],
    "queue": lambda: [Part("queue", a_queue(), WAITS), Part("python calls", calls_of_python)],
    "pipe": lambda: [Part("pipe", a_full_pipe(), WAITS), Part("flat", flat)],
    "socket": lambda: [Part("socket", a_full_socket(), WAITS), Part("flat", flat)],
    "flock": lambda: [Part("flock", a_file_lock(), WAITS), Part("flat", flat)],
    "command": lambda: [Part("command", a_command, WAITS), Part("methods", calls_of_methods)],
    "subprocess": lambda: [Part("subprocess", a_subprocess, WAITS), Part("flat", flat)],
    "fork": lambda: [Part("fork", a_fork, WAITS), Part("flat", flat)],
    "spawn": lambda: [Part("spawn", a_spawned_child(), WAITS), Part("flat", flat)],
    "asyncio": lambda: [Part("tasks", tasks, inside=("task a", "task b"))],
    "threads": lambda: [
        Part("asks", a_thread_that_works(flat), inside=("other thread",)),
        Part("main thread", calls_of_methods),
    ],
}

# How many times as long as others these run: they mostly wait, and the probe's cost is estimated
# from cycles that hold so much CPU time.
LONGER = {
    "flat and sleep": 2,
    "command": 4,
    "subprocess": 4,
    "fork": 4,
    "spawn": 2,
    "queue": 2,
    "socket": 2,
    "lock": 3,
    "with lock": 3,
    "pipe": 3,
    "flock": 3,
    "threads": 4,
}
