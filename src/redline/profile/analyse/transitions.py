"""How often Python crosses into native code, per step and per entry of each operation.

A transition is an instant at which a thread goes from the level `python` to another. Calls that
native code makes itself, and what happens below a compiled region, cross nothing. Only what was
observed counts, on both sides of a ratio: steps and entries in calibration blocks are left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import states_at
from redline.profile.analyse.timeline import OTHER, Decoded, Stream, Timeline
from redline.profile.reader import Process

__all__ = ["TransitionSums", "Transitions", "begins_of", "times_of_begins", "transitions"]


@dataclass(frozen=True, slots=True)
class Transitions:
    """From Python into one level, in one operation of one process."""

    process: str
    pid: int
    operation: str
    level: str
    count: int
    steps: int  # calls of `profile.step()` while the boundary was observed
    entries: int  # how often the operation began meanwhile; 0 for `other`, which never begins

    @property
    def per_step(self) -> float | None:
        """Transitions per step; None without steps."""
        return self.count / self.steps if self.steps else None

    @property
    def per_entry(self) -> float | None:
        """Transitions per entry of the operation, operations inside it not included."""
        return self.count / self.entries if self.entries else None


def transitions(timeline: Timeline) -> list[Transitions]:
    """Count the transitions of a process, the most frequent first."""
    sums = TransitionSums(timeline.process)
    sums.add(timeline)
    return sums.rows()


class TransitionSums:
    """The transitions of a process, slice by slice."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._counts: dict[tuple[int, int], int] = defaultdict(int)
        self._entries: dict[int, int] = defaultdict(int)
        self._steps = 0
        self._is_begin = begins_of(process, None)

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        for thread in timeline.threads:
            for key, count in _crossings(thread).items():
                self._counts[key] += count
            for number, count in _entries(timeline, thread, self._is_begin).items():
                self._entries[number] += count
            at = thread.special_times[thread.special_codes == layout.CODE_STEP]
            self._steps += int((~_is_on(timeline.blind, at)).sum())

    def rows(self) -> list[Transitions]:
        """After the last slice; the most frequent first."""
        process = self._process
        names = {i: name.name for i, name in process.names.items()}
        merged: dict[tuple[str, int], int] = defaultdict(int)
        for (operation, level), count in self._counts.items():
            merged[names.get(operation, OTHER), level] += count
        begun: dict[str, int] = defaultdict(int)
        for number, count in self._entries.items():
            begun[names[number]] += count
        rows = [
            Transitions(
                process.name,
                process.pid,
                operation,
                levels.LEVELS[level],
                count,
                self._steps,
                begun.get(operation, 0),
            )
            for (operation, level), count in sorted(merged.items())
        ]
        return sorted(rows, key=lambda row: -row.count)


def begins_of(process: Process, operation: str | None) -> NDArray[np.bool_]:
    """Which codes begin an operation of this name; None: of any."""
    found = np.zeros(2 * layout.MAX_IDS, bool)
    for name in process.names.values():
        if name.kind in ("operation", "inferred") and operation in (None, name.name):
            found[2 * name.id] = True
    return found


def _crossings(thread: Decoded) -> dict[tuple[int, int], int]:
    """{(operation, level): how often Python went there}; a thread begins in Python."""
    is_python = np.array([s is None or s.level == levels.PYTHON for s in thread.states])
    first = thread.before is None or thread.before.level == levels.PYTHON
    numbers = thread.stream[1]
    in_python = is_python[numbers]
    crosses = ~in_python
    crosses[1:] &= in_python[:-1]
    crosses[:1] &= first
    into = numbers[np.flatnonzero(crosses)]
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for number, count in enumerate(np.bincount(into, minlength=1).tolist()):
        state = thread.states[number]
        if count and state is not None:
            counts[state.operation, state.level] += count
    return counts


def _entries(timeline: Timeline, thread: Decoded, is_begin: NDArray[np.bool_]) -> dict[int, int]:
    """{operation: how often it began while the boundary was observed}."""
    rows = thread.turns_of(is_begin)
    rows = rows[~_is_on(timeline.blind, thread.times_of(rows))]
    counts = np.bincount(thread.rows[1][rows] >> 1, minlength=1).tolist()
    return {number: count for number, count in enumerate(counts) if count}


def _is_on(stream: Stream, times: NDArray[np.int64]) -> NDArray[np.bool_]:
    return states_at(stream, times) == 1


def times_of_begins(threads: list[Decoded], is_begin: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] when these codes came, in order, ns since the process's base; see `begins_of`."""
    found = [np.empty(0, np.int64)]
    for thread in threads:
        found.append(thread.times_of(thread.turns_of(is_begin)))
    return np.sort(np.concatenate(found))
