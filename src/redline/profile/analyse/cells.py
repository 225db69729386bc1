"""The cells: how long each process spent in each (phase, operation, level), GPU busy or not.

Exact: a process's cells sum to the time it was recorded for, in integer nanoseconds. The time in
calibration blocks, when the native boundary was not observed, is split like the observed time near
by of the same phase and marked operation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.timeline import OTHER, State, Stream, Timeline

Key = tuple[str, str, str, bool]  # phase, operation, level, GPU busy
Mark = tuple[str, int, bool]  # phase, marked operation, GPU busy

MAX_STRETCHES = 32
MAX_TABLE = 1 << 22  # combinations of states summed at a time
NEAR_NS = 100_000_000  # observed before the first block and after the last, to split these by
ONE_NS = 10_000_000  # blocks with less between them, as while modules are imported, are like one

__all__ = [
    "BlindShares",
    "CellSums",
    "Cells",
    "Hidden",
    "Key",
    "Mark",
    "compute_cells",
    "held_together",
    "level_with_api",
    "observed",
    "operation_name",
    "split_exactly",
    "stretches",
    "sweep_numpy",
    "sweep_streams",
    "unattributed",
]


@dataclass(frozen=True, slots=True)
class Hidden:
    """Time in calibration blocks, and the observed time that it is split like."""

    ns: int
    nearby_ns: dict[Key, int]


@dataclass(frozen=True, slots=True)
class Cells:
    """Where one process's time went."""

    time_ns: dict[Key, int]  # all of it, hidden time as it was split
    observed_ns: dict[Key, int]
    hidden: list[Hidden]


def sweep_streams(
    streams: list[Stream], sizes: list[int], begin_ns: int, end_ns: int
) -> NDArray[np.int64]:
    """How long each combination of states held between two times.

    Args:
        streams: K streams of states.
        sizes: [K] how many states each has.
        begin_ns: from here on.
        end_ns: to here.

    Returns:
        [sizes[0], sizes[1], ...] ns; sums to `end_ns - begin_ns`.
    """
    from redline.profile import _sweep

    table = _sweep.accumulate(list(streams), list(sizes), begin_ns, end_ns)
    return np.frombuffer(table, np.int64).reshape(sizes)


def sweep_numpy(
    streams: list[Stream], sizes: list[int], begin_ns: int, end_ns: int
) -> NDArray[np.int64]:
    """The same in numpy: the reference for the C sweep."""
    edges = np.unique(np.concatenate([[begin_ns, end_ns], *(times for times, _ in streams)]))
    edges = edges[(edges >= begin_ns) & (edges <= end_ns)].astype(np.int64)
    keys = np.zeros(len(edges) - 1, np.int64)
    for (times, states), size in zip(streams, sizes, strict=True):
        at = np.searchsorted(times, edges[:-1], side="right")
        keys = keys * size + np.concatenate([[0], states.astype(np.int64)])[at]
    table = np.zeros(int(np.prod(sizes)), np.int64)
    np.add.at(table, keys, np.diff(edges))
    return table.reshape(sizes)


def split_exactly(total: int, weights: list[int]) -> list[int]:
    """Split a whole number in proportion, without losing or inventing any.

    Largest remainders; the parts sum to `total`.
    """
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def compute_cells(
    timeline: Timeline, gpu_busy: Stream | None = None, gpu_api: Stream | None = None
) -> Cells:
    """Sum the timeline of a process.

    Args:
        timeline: of the process.
        gpu_busy: 1 while any device it uses executes something, ns since the process's base.
        gpu_api: 1 while it is inside a call of the GPU's API, 2 while it waits in one.
    """
    sums = CellSums()
    sums.add(timeline, gpu_busy, gpu_api)
    return sums.result()


class CellSums:
    """The cells of a process, slice by slice.

    Attributes:
        seen_ns: by cell, what was observed.
        blind_ns: by (stretch, mark, cell), what a calibration block hides.
        shares: what the observed time of each mark consists of.
    """

    def __init__(self) -> None:
        self.seen_ns: dict[Key, int] = defaultdict(int)
        self.blind_ns: dict[tuple[int, Mark, Key], int] = defaultdict(int)
        self.shares = BlindShares()

    def add(
        self, timeline: Timeline, gpu_busy: Stream | None = None, gpu_api: Stream | None = None
    ) -> None:
        """The next slice; see `compute_cells`."""
        found = observed(timeline, stretches(timeline), gpu_busy, gpu_api)
        for stretch, (key, mark, unseen, ns) in found:
            if unseen:
                self.blind_ns[stretch, mark, key] += ns
            else:
                self.seen_ns[key] += ns
                self.shares.add(stretch, mark, key, ns)

    def result(self) -> Cells:
        """After the last slice."""
        seen = dict(self.seen_ns)
        hidden = [
            Hidden(ns, self.shares.of(stretch, mark) or {unattributed(key): 1})
            for (stretch, mark, key), ns in sorted(self.blind_ns.items())
        ]
        for each in hidden:
            parts = split_exactly(each.ns, list(each.nearby_ns.values()))
            for key, part in zip(each.nearby_ns, parts, strict=True):
                seen[key] = seen.get(key, 0) + part
        return Cells(
            {key: ns for key, ns in sorted(seen.items()) if ns},
            dict(sorted(self.seen_ns.items())),
            hidden,
        )


class BlindShares:
    """What a mark's time consists of, by which its time in calibration blocks is split."""

    def __init__(self) -> None:
        self._near: dict[tuple[int, Mark], dict[Key, int]] = defaultdict(lambda: defaultdict(int))
        self._ever: dict[Mark, dict[Key, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, stretch: int, mark: Mark, key: Key, ns: int) -> None:
        """So much was observed. Times without a core are known in the blocks as well."""
        if key[2] == levels.LEVELS[levels.READY]:
            return
        self._near[stretch, mark][key] += ns
        self._ever[mark][key] += ns

    def of(self, stretch: int, mark: Mark) -> dict[Key, int]:
        """Ns of each cell near by, else in the whole session; empty if the mark was never seen."""
        known = self._near.get((stretch, mark)) or self._ever.get(mark) or {}
        return dict(sorted(known.items()))  # in an order of its own, whatever the slices were


def unattributed(key: Key) -> Key:
    """The cell of time of which no level is known."""
    phase, operation, _, busy = key
    return phase, operation, levels.LEVELS[levels.UNATTRIBUTED], busy


def stretches(timeline: Timeline) -> NDArray[np.int64]:
    """Edges, ns, between which a calibration block is like the observed time around it.

    A program starts up, collects and learns, and all of it may be the same mark, or none. So a
    block is split like what lies beside it, not like the session.
    """
    times, states = timeline.all_blind or timeline.blind
    changes = np.diff(states.astype(np.int64), prepend=0)
    begins, ends = times[changes > 0], times[changes < 0]
    end_ns = max(timeline.end_ns, 0)
    if len(begins) == 0:
        return np.array([0, end_ns], np.int64)
    apart = np.flatnonzero(begins[1:] - ends[: len(begins) - 1] >= ONE_NS)  # from the next one
    each = -(-(len(apart) + 1) // MAX_STRETCHES)
    last = apart[each - 1 :: each]
    borders = (ends[last] + begins[last + 1]) // 2
    over = ends[-1] if len(ends) == len(begins) else end_ns
    edges = [[0, begins[0] - NEAR_NS], borders, [over + NEAR_NS, end_ns]]
    return np.unique(np.clip(np.concatenate(edges).astype(np.int64), 0, end_ns))


def observed(
    timeline: Timeline,
    edges_ns: NDArray[np.int64],
    gpu_busy: Stream | None,
    gpu_api: Stream | None,
) -> Iterator[tuple[int, tuple[Key, Mark, bool, int]]]:
    """(stretch, (key, mark, whether its level is hidden, ns)) of all that is not zero.

    Hidden is what a calibration block does not show.

    Args:
        timeline: of the process.
        edges_ns: [N + 1] ascending, ns since the process's base; of the stretches. What lies
            outside of the slice is left out.
        gpu_busy: 1 while any device it uses executes something.
        gpu_api: 1 while it is inside a call of the GPU's API, 2 while it waits in one.
    """
    never = np.empty(0, np.int64), np.empty(0, np.uint32)
    gpu, api = gpu_busy or never, gpu_api or never
    streams = [timeline.lead, timeline.phase, gpu, api, timeline.window, timeline.blind]
    sizes = [len(timeline.states), len(timeline.phases), 2, 3 if len(api[0]) else 1, 2, 2]
    inside = np.clip(edges_ns, *timeline.span_ns).tolist()
    for at, (begin, end) in enumerate(pairwise(inside)):
        if end <= begin:
            continue
        for index, ns in held_together(streams, sizes, begin, end):
            state_number, phase_number, busy, call, recorded, unseen = index
            if not recorded:
                continue
            state, phase = timeline.states[state_number], timeline.phases[phase_number]
            level = levels.LEVELS[level_with_api(state.level, call, alone=timeline.is_alone)]
            key = (phase, operation_name(timeline, state), level, bool(busy))
            mark = (phase, state.marked, bool(busy))
            # A wait that lasts through a block is known, whatever cannot be seen there.
            hidden = bool(unseen) and state.level not in levels.IDLE
            yield at, (key, mark, hidden, ns)


def held_together(
    streams: list[Stream], sizes: list[int], begin: int, end: int
) -> Iterator[tuple[list[int], int]]:
    """(state of each stream, ns) of all combinations that occur between two times.

    A program with a phase for each of thousands of iterations has more combinations than a table
    should hold: then only states that occur get a place in it, in halves of the time if need be.
    """
    cut = [_cut(s, begin, end) for s in streams]
    used = [np.arange(size) for size in sizes]
    if math.prod(sizes) > MAX_TABLE:
        for k, ((times, states), size) in enumerate(zip(cut, sizes, strict=True)):
            is_used = np.zeros(size, bool)
            is_used[states] = is_used[0] = True
            used[k] = np.flatnonzero(is_used)
            cut[k] = times, (np.cumsum(is_used) - 1).astype(np.uint32)[states]
    if math.prod(map(len, used)) > MAX_TABLE and end - begin > 1:
        middle = (begin + end) // 2
        yield from held_together(streams, sizes, begin, middle)
        yield from held_together(streams, sizes, middle, end)
        return
    table = sweep_streams(cut, [len(each) for each in used], begin, end)
    places = np.nonzero(table)
    found = np.stack([each[at] for each, at in zip(used, places, strict=True)], axis=1)
    yield from zip(found.tolist(), table[places].tolist(), strict=True)


def _cut(stream: Stream, begin: int, end: int) -> Stream:
    times, states = stream
    first = max(int(np.searchsorted(times, begin, side="right")) - 1, 0)
    last = int(np.searchsorted(times, end, side="left"))
    return times[first:last], states[first:last]


def level_with_api(level: int, call: int, *, alone: bool = True) -> int:
    """The level, given that the process is (1) or waits (2) in a call of the GPU's API, or not.

    Args:
        level: of the thread that leads.
        call: of any of the process's threads.
        alone: whether there is but one. Else the call may be another's: it is taken to be of the
            one that leads only where that is in native code that makes such calls.
    """
    if call == 0 or level in (*levels.IDLE, levels.SIMULATOR):
        return level
    if not alone and level not in (levels.BACKEND, levels.COMPILED):
        return level
    return levels.CUDA_API if call == 1 else levels.WAITING


def operation_name(timeline: Timeline, state: State) -> str:
    """The innermost operation's name; `other` where there is none."""
    name = timeline.process.names.get(state.operation)
    return name.name if name is not None else OTHER
