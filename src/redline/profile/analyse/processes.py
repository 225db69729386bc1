"""Processes against each other: how many worked at once, and who waited while who worked.

Times are CLOCK_MONOTONIC, which all processes of a machine share; sums are exact in integer
nanoseconds. A process waits while all its threads do; outside its recorded window it is absent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import held_together, operation_name, sweep_streams
from redline.profile.analyse.timeline import Stream, Timeline

ABSENT, WAITING, BUSY, READY = range(4)

__all__ = ["Waits", "WaitsFor", "busy_together", "session_span", "waits"]


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One process waits in an operation while another works in one."""

    waiter: str
    waiter_pid: int
    waiter_operation: str
    worker: str
    worker_pid: int
    worker_operation: str
    both_ns: int


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a process waited in an operation."""

    process: str
    pid: int
    operation: str
    waiting_ns: int
    nobody_busy_ns: int  # of these, with no recorded process at work: it waited for the outside


@dataclass(frozen=True, slots=True)
class _Activity:
    """What a process does over time: a stream of indices into `rows`."""

    timeline: Timeline
    stream: Stream
    rows: list[tuple[int, str]]  # (ABSENT, WAITING, BUSY or READY, operation); 0 is absent


def session_span(timelines: list[Timeline]) -> tuple[int, int]:
    """From the first process's start to the last one's end, CLOCK_MONOTONIC ns."""
    begin = min((t.process.base_ns for t in timelines), default=0)
    end = max((t.process.base_ns + t.end_ns for t in timelines), default=0)
    return begin, max(begin, end)


def busy_together(timelines: list[Timeline]) -> dict[int, int]:
    """{k: ns during which exactly k processes worked}; sums to the span of the session."""
    begin, end = session_span(timelines)
    times, counts = _busy_count([_activity(t) for t in timelines])
    edges = np.clip(np.concatenate([[begin], times, [end]]), begin, end)
    held = np.diff(edges)
    levels_held = np.concatenate([[0], counts.astype(np.int64)])
    totals = np.zeros(len(timelines) + 1, np.int64)
    np.add.at(totals, levels_held, held)
    return {k: ns for k, ns in enumerate(totals.tolist()) if ns}


def waits(timelines: list[Timeline]) -> tuple[list[Waits], list[WaitsFor]]:
    """Who waited, and who worked meanwhile.

    Several others may have worked at once: the rows of a waiter can sum to more than it waited.

    Returns:
        Per process and operation how long it waited, and the pairs; the longest first.
    """
    begin, end = session_span(timelines)
    found = [_activity(t) for t in timelines]
    times, counts = _busy_count(found)
    anybody = times, np.minimum(counts, 1)
    totals: list[Waits] = []
    pairs: list[WaitsFor] = []
    for number, waiter in enumerate(found):
        table = sweep_streams([waiter.stream, anybody], [len(waiter.rows), 2], begin, end)
        by_operation: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
        for (activity, operation), ns in zip(waiter.rows, table, strict=True):
            if activity == WAITING:
                by_operation[operation] = by_operation[operation] + ns
        totals += [
            Waits(_name(waiter), _pid(waiter), operation, int(ns.sum()), int(ns[0]))
            for operation, ns in by_operation.items()
            if ns.sum()
        ]
        for other, worker in enumerate(found):
            if other != number and _meet(waiter, worker):
                pairs += _pair(waiter, worker, begin, end)
    totals.sort(key=lambda row: -row.waiting_ns)
    pairs.sort(key=lambda row: -row.both_ns)
    return totals, pairs


def _meet(a: _Activity, b: _Activity) -> bool:
    """Whether both are there at some time: of many short processes few are."""
    times_a, times_b = a.stream[0], b.stream[0]
    if len(times_a) == 0 or len(times_b) == 0:
        return False
    return bool(times_a[0] < times_b[-1] and times_b[0] < times_a[-1])


def _pair(waiter: _Activity, worker: _Activity, begin: int, end: int) -> list[WaitsFor]:
    sizes = [len(waiter.rows), len(worker.rows)]
    both: dict[tuple[str, str], int] = defaultdict(int)
    for (i, j), ns in held_together([waiter.stream, worker.stream], sizes, begin, end):
        if waiter.rows[i][0] == WAITING and worker.rows[j][0] == BUSY:
            both[waiter.rows[i][1], worker.rows[j][1]] += ns
    return [
        WaitsFor(_name(waiter), _pid(waiter), a, _name(worker), _pid(worker), b, ns)
        for (a, b), ns in both.items()
    ]


def _name(activity: _Activity) -> str:
    return activity.timeline.process.name


def _pid(activity: _Activity) -> int:
    return activity.timeline.process.pid


def _activity(timeline: Timeline) -> _Activity:
    numbers: dict[tuple[int, str], int] = {(ABSENT, ""): 0}
    table: list[int] = []
    for state in timeline.states:
        activity = {levels.WAITING: WAITING, levels.READY: READY}.get(state.level, BUSY)
        row = activity, operation_name(timeline, state)
        table.append(numbers.setdefault(row, len(numbers)))
    window, end_ns = timeline.window, max(timeline.end_ns, 0)
    lead = _changes(timeline.lead[0], np.array(table, np.uint32)[timeline.lead[1]], table[0])
    # Recorded up to its end; after that it is absent whatever its last state was.
    edges = np.sort(np.concatenate([window[0], lead[0], [0, end_ns]]), kind="stable")
    states = _held(lead, edges, table[0])
    states[(_held(window, edges, 0) == 0) | (edges >= end_ns)] = 0
    last = np.append(edges[1:] != edges[:-1], True)
    times, states = _changes(edges[last], states[last], 0)
    return _Activity(timeline, (times + timeline.process.base_ns, states), list(numbers))


def _changes(times: NDArray[np.int64], states: NDArray[np.uint32], before: int) -> Stream:
    """The stream without the points at which nothing changes."""
    changed = np.concatenate([[before], states[:-1]]) != states if len(states) else slice(0)
    return times[changed], states[changed]


def _held(stream: Stream, times: NDArray[np.int64], before: int) -> NDArray[np.uint32]:
    at = np.searchsorted(stream[0], times, side="right")
    return np.concatenate([np.array([before], np.uint32), stream[1]])[at]


def _busy_count(found: list[_Activity]) -> Stream:
    """How many processes are busy."""
    times, steps = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for each in found:
        busy = np.array([row[0] == BUSY for row in each.rows])[each.stream[1]].astype(np.int64)
        times.append(each.stream[0])
        steps.append(np.diff(busy, prepend=0))
    order = np.argsort(np.concatenate(times), kind="stable")
    merged = np.concatenate(times)[order]
    counts = np.cumsum(np.concatenate(steps)[order])
    last = np.append(merged[1:] != merged[:-1], True) if len(merged) else np.empty(0, bool)
    return merged[last], counts[last].astype(np.uint32)
