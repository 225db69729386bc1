"""How a worker starts, and how long its parent reads what it says of its stack.

The clock of the latter is set by hand.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline.envs.workers import descriptors, worker_process
from redline.envs.workers.descriptors import make_room_for
from redline.envs.workers.supervisor import WorkerGroup
from redline.envs.workers.worker_process import WorkerProcess
from redline.errors import ConfigError, WorkerError
from tests.envs.scripted import Echo
from tests.envs.workers.processes import wait_until_gone


class Dump:
    """A worker that writes a part of its stack so many seconds after the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.parts = 100.0, deque[tuple[float, bytes]]()
        read_fd, self._write_fd = os.pipe()
        self._worker = object.__new__(WorkerProcess)
        self._worker.dump_fd = read_fd
        self._worker.process = SimpleNamespace(poll=lambda: None, send_signal=lambda number: None)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        poller = SimpleNamespace(register=lambda fd, events: None, poll=self._poll)
        monkeypatch.setattr(worker_process, "time", clock)
        selecting = SimpleNamespace(poll=lambda: poller, POLLIN=select.POLLIN)
        monkeypatch.setattr(worker_process, "select", selecting)

    def _poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        timeout_s = timeout_ms / 1000.0
        if not self.parts or self.parts[0][0] > timeout_s:
            self.now += timeout_s
            return []
        after_s, part = self.parts.popleft()
        self.now += after_s
        os.write(self._write_fd, part)
        return [(self._worker.dump_fd, select.POLLIN)]

    def read(self, *parts: tuple[float, bytes], limit_s: float = 2.0) -> str:
        self.parts.extend(parts)
        return self._worker.stack(self.now + limit_s)

    def close(self) -> None:
        os.close(self._worker.dump_fd)
        os.close(self._write_fd)


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dump]:
    dump = Dump(monkeypatch)
    yield dump
    dump.close()


def test_a_stack_may_come_in_parts_as_long_as_they_follow_each_other(dump: Dump) -> None:
    """All parts together had so long since the first one: a busy worker's end was missing."""
    assert dump.read((1.0, b"a"), *[(0.15, b"b")] * 5) == "abbbbb"


def test_a_part_that_is_the_last_one_is_not_waited_for_until_the_limit(dump: Dump) -> None:
    assert dump.read((0.5, b"a"), (0.3, b"b"), (0.7, b"c")) == "ab"
    assert dump.now == pytest.approx(101.3)


def test_parts_without_end_are_read_until_the_limit(dump: Dump) -> None:
    assert dump.read(*[(0.06, b"a")] * 100, limit_s=1.0) == 16 * "a"
    assert dump.now == pytest.approx(101.0)


def test_a_worker_that_says_nothing_has_its_whole_time(dump: Dump) -> None:
    assert dump.read((2.5, b"a")) == "(none was given)"
    assert dump.now == pytest.approx(102.0)


def test_a_path_among_the_folders_to_import_from_is_left_out_as_python_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`sys.path.insert(0, Path(...))` ended in a TypeError of json's."""
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path])
    group = WorkerGroup([Echo], titles=["a"], timeout_s=60)
    assert group.call("hello", [1]) == [(0, "hello", 1)]
    group.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """The limit is 8 above what is open: one worker needs that much while it starts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = len(os.listdir("/dev/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_many_workers_raise_the_limit_of_open_files(few_descriptors: int) -> None:
    """256 workers ended in a bare OSError: a shell gives 1,024 descriptors, and each has 4."""
    group = WorkerGroup([Echo] * 3, titles=["a", "b", "c"], timeout_s=60)
    assert group.call("hello", [1, 2, 3]) == [(0, "hello", 1), (1, "hello", 2), (2, "hello", 3)]
    group.close()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= few_descriptors + 3 * 4 - 8


def test_more_workers_than_the_system_lets_open_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors, "_open_now", lambda: 72)
    monkeypatch.setattr(descriptors, "_OF_EACH", 4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    make_room_for(236)  # 72 + 4 x 236 + 8 = 1,024
    with pytest.raises(ConfigError, match=r"237 workers need 1,028 open files .* at most 1,024"):
        make_room_for(237)


@pytest.fixture
def descriptors_from_1024_on() -> Iterator[None]:
    """Every descriptor that is opened now has a number from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < 1023:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors_from_1024_on")
def test_a_worker_that_hangs_is_reported_whatever_the_numbers_of_its_pipes() -> None:
    group = WorkerGroup([Echo], titles=["a"], timeout_s=1.0)
    assert group._workers[0].dump_fd >= 1024
    with pytest.raises(WorkerError, match=r"did not answer 'sleep'(?s:.*)in handle"):
        group.call("sleep", [600.0])


@pytest.mark.usefixtures("descriptors_from_1024_on")
def test_a_busy_worker_leaves_with_its_parent_whatever_the_numbers_of_its_pipes() -> None:
    """The thread that watches for the parent died at its first look."""
    group = WorkerGroup([Echo], titles=["a"], timeout_s=60)
    worker = group._workers[0]
    group.send(0, "sleep", 600.0)
    os.close(worker.life_fd)  # as when the parent is gone
    wait_until_gone([worker.process.pid], limit_s=60)
    worker.life_fd = os.open(os.devnull, os.O_RDONLY)
    group.kill()
