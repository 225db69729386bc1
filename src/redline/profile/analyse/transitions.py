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
from redline.profile.analyse.timeline import OTHER, Decoded, Stream, Timeline
from redline.profile.reader import Process, Shard

__all__ = ["Transitions", "entry_times", "transitions"]


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
    process = timeline.process
    counts: dict[tuple[int, int], int] = defaultdict(int)
    entries: dict[int, int] = defaultdict(int)
    steps = 0
    is_begin = np.zeros(2 * layout.MAX_IDS, bool)
    kinds = {"operation", "inferred"}
    is_begin[[2 * n.id for n in process.names.values() if n.kind in kinds]] = True
    for thread, shard in zip(timeline.threads, process.threads, strict=True):
        for key, count in _crossings(thread).items():
            counts[key] += count
        for number, count in _entries(timeline, shard, is_begin).items():
            entries[number] += count
        at = thread.special_times[thread.special_codes == layout.CODE_STEP]
        steps += int((~_is_on(timeline.blind, at)).sum())
    names = {i: name.name for i, name in process.names.items()}
    merged: dict[tuple[str, int], int] = defaultdict(int)
    for (operation, level), count in counts.items():
        merged[names.get(operation, OTHER), level] += count
    begun: dict[str, int] = defaultdict(int)
    for number, count in entries.items():
        begun[names[number]] += count
    rows = [
        Transitions(
            process.name,
            process.pid,
            operation,
            levels.LEVELS[level],
            count,
            steps,
            begun.get(operation, 0),
        )
        for (operation, level), count in merged.items()
    ]
    return sorted(rows, key=lambda row: -row.count)


def _crossings(thread: Decoded) -> dict[tuple[int, int], int]:
    """{(operation, level): how often Python went there}; a thread begins in Python."""
    python = levels.PYTHON
    level = np.array([python if s is None else s.level for s in thread.states], np.int64)
    operation = np.array([0 if s is None else s.operation for s in thread.states], np.int64)
    states = thread.stream[1]
    before = np.concatenate([[python], level[states][:-1]]) if len(states) else states
    into = states[(before == python) & (level[states] != python)]
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for state, count in enumerate(np.bincount(into, minlength=1).tolist()):
        if count:
            counts[int(operation[state]), int(level[state])] += count
    return counts


def _entries(timeline: Timeline, shard: Shard, is_begin: NDArray[np.bool_]) -> dict[int, int]:
    """{operation: how often it began while the boundary was observed}."""
    rows = np.flatnonzero(is_begin[shard.codes])
    rows = rows[~_is_on(timeline.blind, _times_of(shard, rows))]
    counts = np.bincount(shard.codes[rows] >> 1, minlength=1).tolist()
    return {number: count for number, count in enumerate(counts) if count}


def _times_of(shard: Shard, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ns since the process's base of some timed rows, each after an anchor or the shard's start."""
    codes, deltas = shard.codes, shard.deltas.astype(np.int64)
    payload = (codes >= layout.CODE_ANCHOR) & (codes < layout.CODE_BEAT)
    running = np.cumsum(np.where(payload, 0, deltas))
    anchors = np.flatnonzero(codes == layout.CODE_ANCHOR)
    which = np.searchsorted(anchors, rows) - 1
    if len(anchors) == 0:
        return running[rows]
    absolute = (deltas[anchors - 1] << 32) + deltas[anchors]
    since_anchor = running[rows] - running[anchors][which]
    return np.where(which >= 0, absolute[which] + since_anchor, running[rows])


def _is_on(stream: Stream, times: NDArray[np.int64]) -> NDArray[np.bool_]:
    at = np.searchsorted(stream[0], times, side="right")
    return np.concatenate([np.zeros(1, np.uint32), stream[1]])[at] == 1


def entry_times(process: Process, shard: Shard, operation: str) -> NDArray[np.int64]:
    """[N] when an operation began in a thread, ns since the process's base."""
    kinds = {"operation", "inferred"}
    is_begin = np.zeros(2 * layout.MAX_IDS, bool)
    named = [n.id for n in process.names.values() if n.kind in kinds and n.name == operation]
    is_begin[[2 * number for number in named]] = True
    return _times_of(shard, np.flatnonzero(is_begin[shard.codes]))
