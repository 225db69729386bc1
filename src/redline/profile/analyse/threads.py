"""The threads of a process that has several: each one's own time, whoever leads.

A process's cells hold each instant once, charged to the thread that leads. What the others did
meanwhile is here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import operation_name, sweep_streams
from redline.profile.analyse.timeline import Timeline
from redline.profile.reader import Process

__all__ = ["ThreadRow", "ThreadSums", "blind_share", "thread_rows"]


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """Time of one thread in one operation and level; as recorded, not corrected."""

    process: str
    pid: int
    thread: int  # in order of first events; 0 began the recording
    operation: str
    level: str
    raw_s: float


class ThreadSums:
    """The threads of a process, slice by slice."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held: dict[int, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
        self._recorded = self._blind = 0

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        span = timeline.span_ns
        blind = sweep_streams([timeline.window, timeline.blind], [2, 2], *span)
        self._recorded += int(blind[1].sum())
        self._blind += int(blind[1, 1])
        if timeline.num_threads < 2:
            return
        for thread in timeline.threads:
            sizes = [len(thread.states), 2]
            held: NDArray[np.int64] = sweep_streams([thread.stream, timeline.window], sizes, *span)
            found = self._held[thread.index]
            for state, ns in zip(thread.states, held[:, 1].tolist(), strict=True):
                if state is not None and ns:
                    found[operation_name(timeline, state), levels.LEVELS[state.level]] += ns

    def rows(self) -> list[ThreadRow]:
        """All threads by time; none of a process with one thread."""
        rows: list[ThreadRow] = []
        process = self._process
        for index, found in sorted(self._held.items()):
            own = sorted(found.items(), key=lambda item: (-item[1], item[0]))
            rows += [ThreadRow(process.name, process.pid, index, *key, ns / 1e9) for key, ns in own]
        return rows

    def blind_share(self) -> float:
        """The part of the recorded time in which native calls were not observed, of 1."""
        return self._blind / self._recorded if self._recorded else 0.0


def _sums(timeline: Timeline) -> ThreadSums:
    sums = ThreadSums(timeline.process)
    sums.add(timeline)
    return sums


def thread_rows(timeline: Timeline) -> list[ThreadRow]:
    """All threads of a process by time; none of a process with one thread."""
    return _sums(timeline).rows()


def blind_share(timeline: Timeline) -> float:
    """The part of the recorded time in which native calls were not observed, of 1."""
    return _sums(timeline).blind_share()
