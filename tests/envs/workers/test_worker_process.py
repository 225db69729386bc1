"""How long a parent reads what a worker says of its stack, with a clock that is set by hand."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from redline.envs.workers import worker_process
from redline.envs.workers.worker_process import WorkerProcess


class Dump:
    """A worker that writes a part of its stack so many seconds after the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.parts = 100.0, deque[tuple[float, bytes]]()
        read_fd, self._write_fd = os.pipe()
        self._worker = object.__new__(WorkerProcess)
        self._worker.dump_fd = read_fd
        self._worker.process = SimpleNamespace(poll=lambda: None, send_signal=lambda number: None)
        clock, waiting = SimpleNamespace(monotonic=lambda: self.now), self._select
        monkeypatch.setattr(worker_process, "time", clock)
        monkeypatch.setattr(worker_process, "select", SimpleNamespace(select=waiting))

    def _select(self, reading: list[int], *others: Any) -> tuple[list[int]]:
        timeout_s = others[-1]
        if not self.parts or self.parts[0][0] > timeout_s:
            self.now += timeout_s
            return ([],)
        after_s, part = self.parts.popleft()
        self.now += after_s
        os.write(self._write_fd, part)
        return (reading,)

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
    """All parts together had 0.1 s since the first one: of a busy worker's the end was missing."""
    assert dump.read((1.0, b"a"), *[(0.06, b"b")] * 5) == "abbbbb"


def test_a_part_that_is_the_last_one_is_not_waited_for_until_the_limit(dump: Dump) -> None:
    assert dump.read((0.5, b"a"), (0.06, b"b"), (0.2, b"c")) == "ab"
    assert dump.now == pytest.approx(100.66)


def test_parts_without_end_are_read_until_the_limit(dump: Dump) -> None:
    assert dump.read(*[(0.06, b"a")] * 100, limit_s=1.0) == 16 * "a"
    assert dump.now == pytest.approx(101.0)


def test_a_worker_that_says_nothing_has_its_whole_time(dump: Dump) -> None:
    assert dump.read((2.5, b"a")) == "(none was given)"
    assert dump.now == pytest.approx(102.0)
