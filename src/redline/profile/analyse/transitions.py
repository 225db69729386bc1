"""How often Python crosses into native code, per step and per entry of each operation.

A transition is an instant at which a thread goes from the level `python` to another. Calls that
native code makes itself, and what happens below a compiled region, cross nothing. Nor does a core
that was lost: the levels are those that events say, without what the scheduler's looks add. Only
what was observed counts, on both sides of a ratio: steps and entries in calibration blocks are left
out.
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

__all__ = [
    "BeginsOutside",
    "TransitionSums",
    "Transitions",
    "begins_of",
    "times_of_begins",
    "transitions",
]


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
    begun: int = 0  # how often it began in all

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
        self._begun: dict[int, int] = defaultdict(int)
        self._steps = 0
        self._is_begin = begins_of(process, None)

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        for thread in timeline.threads:
            for key, count in _crossings(thread).items():
                self._counts[key] += count
            rows = thread.turns_of(self._is_begin)
            seen = rows[~_is_on(timeline.blind, thread.times_of(rows))]
            for into, of in ((self._entries, seen), (self._begun, rows)):
                for number, count in _entries(thread, of).items():
                    into[number] += count
            at = thread.special_times[thread.special_codes == layout.CODE_STEP]
            self._steps += int((~_is_on(timeline.blind, at)).sum())

    def rows(self) -> list[Transitions]:
        """After the last slice; the most frequent first."""
        process = self._process
        names = {i: name.name for i, name in process.names.items()}
        merged: dict[tuple[str, int], int] = defaultdict(int)
        for (operation, level), count in self._counts.items():
            merged[names.get(operation, OTHER), level] += count
        seen: dict[str, int] = defaultdict(int)
        begun: dict[str, int] = defaultdict(int)
        for by_name, counts in ((seen, self._entries), (begun, self._begun)):
            for number, count in counts.items():
                by_name[names[number]] += count
        rows = [
            Transitions(
                process.name,
                process.pid,
                operation,
                levels.LEVELS[level],
                count,
                self._steps,
                seen.get(operation, 0),
                begun.get(operation, 0),
            )
            for (operation, level), count in sorted(merged.items())
        ]
        return sorted(rows, key=lambda row: -row.count)


def begins_of(
    process: Process, operation: str | None, *, complete: bool = False
) -> NDArray[np.bool_]:
    """Which codes begin an operation of this name.

    Args:
        process: that was recorded.
        operation: its name; None: any.
        complete: only those that complete an env step, if it is simulation.
    """
    found = np.zeros(2 * layout.MAX_IDS, bool)
    for name in process.names.values():
        if complete and name.module == layout.WITHOUT_STEP:
            continue
        if name.kind in ("operation", "inferred") and operation in (None, name.name):
            found[2 * name.id] = True
    return found


def _crossings(thread: Decoded) -> dict[tuple[int, int], int]:
    """{(operation, level): how often Python went there}; a thread begins in Python."""
    is_python = np.array([s is None or s.said == levels.PYTHON for s in thread.states])
    first = thread.before is None or thread.before.said == levels.PYTHON
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
            counts[state.operation, state.said] += count
    return counts


def _entries(thread: Decoded, rows: NDArray[np.int64]) -> dict[int, int]:
    """{operation: how often it began} of rows at which operations begin."""
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


class BeginsOutside:
    """When an operation began in a process, where it was not inside another one, slice by slice.

    Of simulation only what completes an env step: no reset, and of a step in two calls the second.

    Args:
        process: that was recorded.
        operation: whose begins are wanted.
        around: the operation inside which they do not count.
    """

    def __init__(self, process: Process, operation: str, around: str) -> None:
        self._begins = begins_of(process, operation, complete=True)
        self._around = begins_of(process, around)
        self._ends = np.roll(self._around, 1)  # the code of an end follows that of its begin
        self._open: dict[int, int] = defaultdict(int)  # of the other operation, per thread

    def times(self, threads: list[Decoded]) -> NDArray[np.int64]:
        """[N] of the next slice, in order, ns since the process's base."""
        found = [np.empty(0, np.int64)]
        for thread in threads:
            rows = thread.turns_of(self._begins | self._around | self._ends)
            codes = thread.rows[1][rows]
            depth = self._open[thread.index] + np.cumsum(
                self._around[codes].astype(np.int64) - self._ends[codes]
            )
            if len(rows):
                self._open[thread.index] = max(int(depth[-1]), 0)
            found.append(thread.times_of(rows[self._begins[codes] & (depth <= 0)]))
        return np.sort(np.concatenate(found))
