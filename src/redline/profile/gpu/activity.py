"""GPU time joined with the CPU's timeline, two ways.

| view | the GPU's time goes to |
|---|---|
| launched by | the operation that made the call which launched it, by correlation id |
| concurrent with | whatever the CPU was doing meanwhile |

A device is busy in the union of its intervals over all streams: two kernels side by side do not
make it twice as busy. All of it is within the windows only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import level_with_api, operation_name, sweep_streams
from redline.profile.analyse.decoded import FOREVER, states_at
from redline.profile.analyse.overlap import overlap
from redline.profile.analyse.timeline import OTHER, Stream, Timeline
from redline.profile.gpu.records import (
    COPY,
    DRIVER,
    GRAPH,
    KERNEL,
    KINDS,
    ON_DEVICE,
    RUNTIME,
    SYNC,
    GpuRecords,
    GpuWindow,
)
from redline.profile.reader import Process

BEFORE = "(before the window)"

__all__ = [
    "Concurrent",
    "DeviceBusy",
    "GpuSums",
    "Launched",
    "Meanwhile",
    "api_stream",
    "busy_stream",
    "concurrent_with",
    "device_busy",
    "launched_by",
    "streams_of",
]


@dataclass(frozen=True, slots=True)
class DeviceBusy:
    """How busy a device was with one process's work, in its windows."""

    process: str
    pid: int
    device: int
    window_ns: int
    busy_ns: int  # union over streams of kernels, copies and sets
    kernel_ns: int  # union of kernels alone
    copy_ns: int  # union of copies alone
    both_ns: int  # kernels and copies at once
    streams: int


@dataclass(frozen=True, slots=True)
class Launched:
    """What an operation launched."""

    process: str
    pid: int
    operation: str
    kind: str
    device: int
    count: int
    total_ns: int  # sum of durations; streams overlap, so it may exceed the time that passed
    busy_ns: int  # union of the intervals


@dataclass(frozen=True, slots=True)
class Concurrent:
    """What the CPU did, with and without the GPU at work; sums to the windows."""

    process: str
    pid: int
    operation: str
    level: str
    gpu_busy: bool
    time_ns: int


def _intervals(records: GpuRecords, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.stack([records.begin_ns[chosen], records.end_ns[chosen]], axis=1)


def _clipped(window: GpuWindow, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.clip(_intervals(window.records, chosen), window.begin_ns, window.end_ns)


def _union(intervals: NDArray[np.int64]) -> NDArray[np.int64]:
    """[M, 2] disjoint, sorted intervals."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(intervals) == 0:
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    first = np.concatenate([[True], intervals[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([intervals[first, 0], reach[last]], axis=1)


def _as_stream(intervals: NDArray[np.int64], base_ns: int) -> Stream:
    merged = _union(intervals)
    states = np.tile(np.array([1, 0], np.uint32), len(merged))
    return merged.reshape(-1) - base_ns, states


def busy_stream(windows: list[GpuWindow], base_ns: int) -> Stream:
    """1 while any device executes something, ns since `base_ns`."""
    parts = [_clipped(w, np.isin(w.records.kinds, ON_DEVICE)) for w in windows]
    return _as_stream(np.concatenate([np.empty((0, 2), np.int64), *parts]), base_ns)


def api_stream(windows: list[GpuWindow], base_ns: int) -> Stream:
    """1 while a thread is inside a CUDA call, 2 while one waits in it for the device."""
    empty = np.empty((0, 2), np.int64)
    calls = [_clipped(w, np.isin(w.records.kinds, (RUNTIME, DRIVER, GRAPH))) for w in windows]
    waits = [_clipped(w, w.records.kinds == SYNC) for w in windows]
    in_call = _as_stream(np.concatenate([empty, *calls]), base_ns)
    in_wait = _as_stream(np.concatenate([empty, *waits]), base_ns)
    times = np.union1d(in_call[0], in_wait[0])
    states = np.maximum(states_at(in_call, times), 2 * states_at(in_wait, times))
    return times, states.astype(np.uint32)


def streams_of(windows: list[GpuWindow], base_ns: int) -> tuple[Stream | None, Stream | None]:
    """`busy_stream` and `api_stream`; None where nothing was observed."""
    if not windows:
        return None, None
    return busy_stream(windows, base_ns), api_stream(windows, base_ns)


def device_busy(process: Process, windows: list[GpuWindow]) -> list[DeviceBusy]:
    """How busy each device was."""
    rows: list[DeviceBusy] = []
    every = sorted({int(d) for w in windows for d in np.unique(w.records.device) if d >= 0})
    for device in every:
        intervals: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
        streams: set[int] = set()
        for window in windows:
            mine = window.records.device == device
            streams |= set(window.records.stream[mine].tolist())
            for label, kinds in (("all", ON_DEVICE), ("kernel", (KERNEL,)), ("copy", (COPY,))):
                chosen = mine & np.isin(window.records.kinds, kinds)
                intervals[label].append(_clipped(window, chosen))
        held = overlap({label: np.concatenate(parts) for label, parts in intervals.items()})
        total = {k: sum(ns for s, ns in held.items() if k in s) for k in ("all", "kernel", "copy")}
        rows.append(
            DeviceBusy(
                process.name,
                process.pid,
                device,
                sum(w.end_ns - w.begin_ns for w in windows),
                total["all"],
                total["kernel"],
                total["copy"],
                sum(ns for s, ns in held.items() if {"kernel", "copy"} <= s),
                len(streams),
            )
        )
    return rows


def launched_by(timeline: Timeline, windows: list[GpuWindow]) -> list[Launched]:
    """Give each kernel, copy and set to the operation in which the CPU launched it.

    What was launched before a window began is under a name of its own.
    """
    sums = GpuSums(timeline.process, windows)
    sums.add(timeline)
    return sums.launched_by()


class Meanwhile:
    """What a process's CPU did in its windows, slice by slice; see `concurrent_with`.

    Args:
        process: it belongs to.
        windows: in which the GPU was observed.
    """

    def __init__(self, process: Process, windows: list[GpuWindow]) -> None:
        self._process, self._windows = process, windows
        base_ns = process.base_ns
        self._busy, self._api = busy_stream(windows, base_ns), api_stream(windows, base_ns)
        self._totals: dict[tuple[str, str, bool], int] = defaultdict(int)

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        for window in self._windows:
            self._add(timeline, window)

    def _add(self, timeline: Timeline, window: GpuWindow) -> None:
        base_ns = self._process.base_ns
        begin = max(window.begin_ns - base_ns, timeline.begin_ns)
        end = min(window.end_ns - base_ns, timeline.until_ns)
        if end <= begin:
            return
        sizes = [len(timeline.states), 2, 3]
        table = sweep_streams([timeline.lead, self._busy, self._api], sizes, begin, end)
        for number, gpu, call in np.argwhere(table).tolist():
            state = timeline.states[number]
            operation = operation_name(timeline, state) if number else OTHER
            level = levels.LEVELS[level_with_api(state.level, call, alone=timeline.is_alone)]
            self._totals[operation, level, bool(gpu)] += int(table[number, gpu, call])

    def rows(self) -> list[Concurrent]:
        """After the last slice, the longest first."""
        process = self._process
        rows = [
            Concurrent(process.name, process.pid, *key, ns)
            for key, ns in sorted(self._totals.items())
        ]
        return sorted(rows, key=lambda row: -row.time_ns)


class GpuSums:
    """What a process launched in its windows, and did meanwhile, slice by slice.

    Args:
        process: it belongs to.
        windows: in which the GPU was observed.
    """

    def __init__(self, process: Process, windows: list[GpuWindow]) -> None:
        self._process, self._windows = process, windows
        self._meanwhile = Meanwhile(process, windows)
        # When the first and the last of each window's launches came: few slices hold any of them.
        self._bounds = [_bounds(window, process.base_ns) for window in windows]
        self._spans: dict[tuple[str, int, int], list[NDArray[np.int64]]] = defaultdict(list)

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        for window, (first_ns, last_ns) in zip(self._windows, self._bounds, strict=True):
            has_begun = timeline.begin_ns <= 0 or last_ns >= timeline.begin_ns
            if has_begun and first_ns < timeline.until_ns:
                self._add_launches(timeline, window)
        self._meanwhile.add(timeline)

    def _add_launches(self, timeline: Timeline, window: GpuWindow) -> None:
        base_ns, records = self._process.base_ns, window.records
        on_device, launch_ns, at = _launches(window, base_ns)
        mine = (at < timeline.until_ns) & ((at >= timeline.begin_ns) | (timeline.begin_ns <= 0))
        chosen, launch_ns = np.flatnonzero(on_device)[mine], launch_ns[mine]
        names = [*(operation_name(timeline, state) for state in timeline.states), BEFORE]
        states = states_at(timeline.lead, launch_ns - base_ns).astype(np.int64)
        states[launch_ns < 0] = len(names) - 1
        columns = states, records.kinds[chosen].astype(np.int64), records.device[chosen]
        keys, key_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        spans = np.stack([records.begin_ns[chosen], records.end_ns[chosen]], axis=1)
        for number, (state, kind, device) in enumerate(keys.tolist()):
            self._spans[names[state], kind, device].append(spans[key_of.reshape(-1) == number])

    def launched_by(self) -> list[Launched]:
        """See `launched_by`."""
        rows = [
            Launched(
                self._process.name,
                self._process.pid,
                operation,
                KINDS[kind],
                device,
                len(spans),
                int(np.diff(spans, axis=1).sum()),
                int(np.diff(_union(spans), axis=1).sum()),
            )
            for (operation, kind, device), parts in sorted(self._spans.items())
            for spans in [np.concatenate(parts)]
        ]
        return sorted(rows, key=lambda row: -row.total_ns)

    def concurrent_with(self) -> list[Concurrent]:
        """See `concurrent_with`."""
        return self._meanwhile.rows()


def _launches(
    window: GpuWindow, base_ns: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """[N] which records are on a device; [M] of these the launch, and the time that counts for it.

    What was launched before the window began is of the slice in which that did.
    """
    on_device = np.isin(window.records.kinds, ON_DEVICE)
    launch_ns = _launch_times(window.records, on_device)
    return on_device, launch_ns, np.where(launch_ns >= 0, launch_ns, window.begin_ns) - base_ns


def _bounds(window: GpuWindow, base_ns: int) -> tuple[int, int]:
    """The first and the last of these times; an empty stretch where there are none."""
    at = _launches(window, base_ns)[2]
    return (int(at.min()), int(at.max())) if len(at) else (FOREVER, -FOREVER)


def _launch_times(records: GpuRecords, on_device: NDArray[np.bool_]) -> NDArray[np.int64]:
    """When what ran on a device was launched, -1 where that was not recorded."""
    calls = ~on_device & (records.correlation > 0)
    order = np.argsort(records.correlation[calls], kind="stable")
    ids, times = records.correlation[calls][order], records.begin_ns[calls][order]
    wanted = records.correlation[on_device]
    if len(ids) == 0:
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[at] == wanted) & (wanted > 0), times[at], -1)


def concurrent_with(timeline: Timeline, windows: list[GpuWindow]) -> list[Concurrent]:
    """What the CPU did in the windows, with the GPU busy and without.

    Inside the ML back end, CUDA calls are a level of their own; in one that waits for the device
    the CPU waits.
    """
    sums = Meanwhile(timeline.process, windows)
    sums.add(timeline)
    return sums.rows()
