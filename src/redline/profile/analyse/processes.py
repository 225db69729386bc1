"""Processes against each other: how many worked at once, and who waited while who worked.

Times are CLOCK_MONOTONIC, which all processes of a machine share; sums are exact in integer
nanoseconds. A process waits while all its threads do; outside its recorded window it is absent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import held_together, operation_name, sweep_streams
from redline.profile.analyse.decoded import FOREVER, Stream, states_at
from redline.profile.analyse.slices import Outline
from redline.profile.analyse.timeline import Timeline
from redline.profile.reader import Process

ABSENT, WAITING, BUSY, READY = range(4)
NOTHING: Stream = np.empty(0, np.int64), np.empty(0, np.uint32)

__all__ = ["READY", "WaitSums", "Waits", "WaitsFor", "busy_together", "session_span", "waits"]


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


@dataclass(slots=True)
class _Activity:
    """What a process does over time: a stream of indices into `rows`."""

    process: Process
    numbers: dict[tuple[int, str], int]  # (ABSENT, WAITING, BUSY or READY, operation); 0 is absent
    stream: Stream = field(default_factory=lambda: NOTHING)  # CLOCK_MONOTONIC

    @property
    def rows(self) -> list[tuple[int, str]]:
        """What each index means."""
        return list(self.numbers)

    def go_on(self, stream: Stream) -> None:
        """Append what comes next."""
        (times, states), (more, others) = self.stream, stream
        self.stream = np.concatenate([times, more]), np.concatenate([states, others])

    def drop(self, until_ns: int) -> None:
        """Forget what came before, but for the state that lasts."""
        times, states = self.stream
        at = max(int(np.searchsorted(times, until_ns, side="right")) - 1, 0)
        self.stream = times[at:], states[at:]


def session_span(timelines: Sequence[Timeline | Outline]) -> tuple[int, int]:
    """From the first process's start to the last one's end, CLOCK_MONOTONIC ns."""
    begin = min((t.process.base_ns for t in timelines), default=0)
    end = max((t.process.base_ns + t.end_ns for t in timelines), default=0)
    return begin, max(begin, end)


def busy_together(timelines: list[Timeline]) -> dict[int, int]:
    """{k: ns during which exactly k processes worked}; sums to the span of the session."""
    return _sums(timelines).busy_together()


def waits(timelines: list[Timeline]) -> tuple[list[Waits], list[WaitsFor]]:
    """Who waited, and who worked meanwhile.

    Several others may have worked at once: the rows of a waiter can sum to more than it waited.

    Returns:
        Per process and operation how long it waited, and the pairs; the longest first.
    """
    return _sums(timelines).waits()


def _sums(timelines: list[Timeline]) -> WaitSums:
    sums = WaitSums([t.process for t in timelines], *session_span(timelines))
    sums.add(list(range(len(timelines))), timelines, FOREVER)
    return sums


class WaitSums:
    """The processes of a session against each other, slice by slice.

    Args:
        processes: of the session.
        begin_ns: CLOCK_MONOTONIC of its begin.
        end_ns: and of its end.
    """

    def __init__(self, processes: list[Process], begin_ns: int, end_ns: int) -> None:
        self._found = [_Activity(process, {(ABSENT, ""): 0}) for process in processes]
        self._told_ns, self._end_ns = begin_ns, end_ns
        self._busy = np.zeros(len(processes) + 1, np.int64)
        self._waits: dict[tuple[int, int, str], NDArray[np.int64]] = defaultdict(
            lambda: np.zeros(2, np.int64)
        )
        self._pairs: dict[tuple[int, int, str, int, str], int] = defaultdict(int)
        self._beside: dict[tuple[int, int], int] = defaultdict(int)

    def add(self, places: list[int], timelines: list[Timeline], until_ns: int) -> None:
        """The next slices of some processes, after which all are known up to a time."""
        for place, timeline in zip(places, timelines, strict=True):
            self._found[place].go_on(_activity(timeline, self._found[place].numbers))
        begin, end = self._told_ns, min(until_ns, self._end_ns)
        if end <= begin:
            return
        self._told_ns = end
        there = [i for i, each in enumerate(self._found) if _is_there(each, begin, end)]
        found = [self._found[i] for i in there]
        times, counts = _busy_count(found, begin, end)
        edges = np.clip(np.concatenate([[begin], times, [end]]), begin, end)
        np.add.at(self._busy, np.concatenate([[0], counts.astype(np.int64)]), np.diff(edges))
        anybody = times, np.minimum(counts, 1)
        for i in there:
            self._add_waits(i, anybody, begin, end)
            for j in there:
                if j != i:
                    self._add_pair(i, j, begin, end)
        for each in found:
            each.drop(end)

    def _add_waits(self, place: int, anybody: Stream, begin: int, end: int) -> None:
        waiter = self._found[place]
        table = sweep_streams([waiter.stream, anybody], [len(waiter.numbers), 2], begin, end)
        for (activity, operation), ns in zip(waiter.numbers, table, strict=True):
            if activity in (WAITING, READY) and ns.any():
                self._waits[activity, place, operation] += ns

    def _add_pair(self, place: int, other: int, begin: int, end: int) -> None:
        waiter, worker = self._found[place], self._found[other]
        rows, others = waiter.rows, worker.rows
        sizes = [len(rows), len(others)]
        for (i, j), ns in held_together([waiter.stream, worker.stream], sizes, begin, end):
            activity, operation = rows[i]
            if activity in (BUSY, READY) and others[j][0] != ABSENT:
                self._beside[place, other] += ns
            if activity in (WAITING, READY) and others[j][0] == BUSY:
                self._pairs[activity, place, operation, other, others[j][1]] += ns

    def busy_together(self) -> dict[int, int]:
        """{k: ns during which exactly k processes worked}."""
        return {k: ns for k, ns in enumerate(self._busy.tolist()) if ns}

    def beside(self) -> dict[tuple[int, int], int]:
        """{(place, place): ns} for which a process worked, or could have, while another was there.

        A process is there from its first recorded event to its last.
        """
        return dict(self._beside)

    def waits(self, activity: int = WAITING) -> tuple[list[Waits], list[WaitsFor]]:
        """See `waits`.

        Args:
            activity: WAITING, or READY: to run, but without a core.
        """

        def who(place: int) -> tuple[str, int]:
            return self._found[place].process.name, self._found[place].process.pid

        totals = [
            Waits(*who(place), operation, int(ns.sum()), int(ns[0]))
            for (kind, place, operation), ns in sorted(
                self._waits.items(), key=lambda item: item[0]
            )
            if kind == activity
        ]
        pairs = [
            WaitsFor(*who(i), a, *who(j), b, ns)
            for (kind, i, a, j, b), ns in sorted(self._pairs.items())
            if kind == activity
        ]
        totals.sort(key=lambda row: -row.waiting_ns)
        pairs.sort(key=lambda row: -row.both_ns)
        return totals, pairs


def _is_there(activity: _Activity, begin: int, end: int) -> bool:
    """Whether a process is there at some time in between: of many short ones few are."""
    times, states = activity.stream
    if len(times) == 0 or times[0] >= end:
        return False
    return bool(times[-1] > begin or states[-1] != 0)


def _activity(timeline: Timeline, numbers: dict[tuple[int, str], int]) -> Stream:
    """What a process does in a slice, CLOCK_MONOTONIC.

    Args:
        timeline: the slice.
        numbers: of what it can do; what is new is added.
    """
    if timeline.begin_ns > max(timeline.end_ns, 0):
        return NOTHING
    table: list[int] = []
    for state in timeline.states:
        activity = {levels.WAITING: WAITING, levels.READY: READY}.get(state.level, BUSY)
        row = activity, operation_name(timeline, state)
        table.append(numbers.setdefault(row, len(numbers)))
    window, (begin_ns, end_ns) = timeline.window, timeline.span_ns
    lead = _changes(timeline.lead[0], np.array(table, np.uint32)[timeline.lead[1]], table[0])
    # Recorded up to its end; after that it is absent whatever its last state was.
    edges = np.sort(np.concatenate([window[0], lead[0], [begin_ns, end_ns]]), kind="stable")
    edges = edges[(edges >= begin_ns) & (edges <= end_ns)]
    states = states_at(lead, edges, table[0])
    states[(states_at(window, edges) == 0) | (edges >= timeline.end_ns)] = 0
    last = np.append(edges[1:] != edges[:-1], True)
    if end_ns < timeline.end_ns:
        last &= edges < end_ns  # where the next slice begins
    times, states = edges[last], states[last]
    return times + timeline.process.base_ns, states


def _changes(times: NDArray[np.int64], states: NDArray[np.uint32], before: int) -> Stream:
    """The stream without the points at which nothing changes."""
    changed = np.concatenate([[before], states[:-1]]) != states if len(states) else slice(0)
    return times[changed], states[changed]


def _busy_count(found: list[_Activity], begin: int, end: int) -> Stream:
    """How many processes are busy, between two times."""
    times, steps = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for each in found:
        own, states = each.stream
        own, states = own[own < end], states[own < end]
        busy = np.array([row[0] == BUSY for row in each.rows])[states].astype(np.int64)
        times.append(np.maximum(own, begin))
        steps.append(np.diff(busy, prepend=0))
    order = np.argsort(np.concatenate(times), kind="stable")
    merged = np.concatenate(times)[order]
    counts = np.cumsum(np.concatenate(steps)[order])
    last = np.append(merged[1:] != merged[:-1], True) if len(merged) else np.empty(0, bool)
    return merged[last], counts[last].astype(np.uint32)
