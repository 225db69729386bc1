"""A session cut into equal stretches of time, so that a page can sum any range of them.

All processes share the edges. Per process the bins of a cell sum to the cell's time exactly, and
the cells of a bin to the time that was recorded in it, in integer nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.cells import (
    BlindShares,
    Cells,
    CellSums,
    Key,
    Mark,
    observed,
    split_exactly,
    stretches,
    unattributed,
)
from redline.profile.analyse.timeline import Decoded, Stream, Timeline

__all__ = ["CallBins", "CellBins", "FunctionBins", "bin_cells", "bin_functions", "held", "spread"]


def bin_cells(
    timeline: Timeline,
    edges_ns: NDArray[np.int64],
    gpu_busy: Stream | None = None,
    gpu_api: Stream | None = None,
) -> dict[Key, NDArray[np.int64]]:
    """The cells of a process, per stretch of time.

    Calibration blocks are split as `compute_cells` splits them, and spread over the bins in
    proportion to the time each holds of them.

    Args:
        timeline: of the process.
        edges_ns: [N + 1] ascending, ns since the process's base.
        gpu_busy: 1 while any device it uses executes something.
        gpu_api: 1 while it is inside a call of the GPU's API, 2 while it waits in one.

    Returns:
        [N] ns for each (phase, operation, level, GPU busy).
    """
    sums = CellBins(edges_ns)
    sums.add(timeline, gpu_busy, gpu_api)
    return sums.result()


class CellBins:
    """The cells of a process per stretch of time, slice by slice; see `bin_cells`.

    Args:
        edges_ns: [N + 1] ascending, ns since the process's base.
    """

    def __init__(self, edges_ns: NDArray[np.int64]) -> None:
        self._edges_ns = edges_ns
        self._seen: dict[Key, NDArray[np.int64]] = defaultdict(self._zeros)
        self._blind: dict[tuple[int, Mark], dict[Key, NDArray[np.int64]]] = defaultdict(
            lambda: defaultdict(self._zeros)
        )
        self._shares = BlindShares()

    def _zeros(self) -> NDArray[np.int64]:
        return np.zeros(len(self._edges_ns) - 1, np.int64)

    def add(
        self, timeline: Timeline, gpu_busy: Stream | None = None, gpu_api: Stream | None = None
    ) -> None:
        """The next slice."""
        edges_ns, near = self._edges_ns, stretches(timeline)
        edges = np.unique(
            np.concatenate([edges_ns, near[(near > edges_ns[0]) & (near < edges_ns[-1])]])
        )
        bins = np.searchsorted(edges_ns, edges[:-1], side="right") - 1
        stretch_of = np.searchsorted(near, np.maximum(edges[:-1], 0), side="right") - 1
        for piece, (key, mark, unseen, ns) in observed(timeline, edges, gpu_busy, gpu_api):
            at, stretch = int(bins[piece]), int(stretch_of[piece])
            if unseen:
                self._blind[stretch, mark][key][at] += ns
            else:
                self._seen[key][at] += ns
                self._shares.add(stretch, mark, key, ns)

    def observed(self) -> dict[Key, NDArray[np.int64]]:
        """[N] ns of each cell outside of calibration blocks, after the last slice."""
        return {key: row.copy() for key, row in self._seen.items()}

    def result(self) -> dict[Key, NDArray[np.int64]]:
        """After the last slice."""
        seen: dict[Key, NDArray[np.int64]] = defaultdict(self._zeros)
        seen.update({key: row.copy() for key, row in self._seen.items()})
        unseen_ns = self._zeros()
        for (stretch, mark), keys in sorted(self._blind.items(), key=lambda item: item[0]):
            columns = np.sum(list(keys.values()), axis=0)
            unseen_ns += columns
            known = self._shares.of(stretch, mark)
            if known:
                parts = split_exactly(int(columns.sum()), list(known.values()))
                for key, row in zip(known, spread(parts, columns.tolist()), strict=True):
                    seen[key] += np.array(row, np.int64)
            else:
                for key, row in keys.items():
                    seen[unattributed(key)] += row
        # The cells were split in smaller parts, rounded each: the few ns that differ go to one bin.
        at = int(unseen_ns.argmax())
        for key, ns in self._whole().time_ns.items():
            seen[key][at] += ns - int(seen[key].sum())
        return dict(sorted(seen.items()))

    def _whole(self) -> Cells:
        """The cells of all bins together, as `CellSums` splits them."""
        sums = CellSums()
        sums.seen_ns.update({key: int(row.sum()) for key, row in self._seen.items()})
        for (stretch, mark), keys in self._blind.items():
            for key, row in keys.items():
                sums.blind_ns[stretch, mark, key] += int(row.sum())
        sums.shares = self._shares
        return sums.result()


def spread(rows: list[int], columns: list[int]) -> list[list[int]]:
    """A table of whole numbers in proportion to given row and column sums, both kept exactly.

    Differences of the rounded cumulative product; an entry is at most one away from proportion.

    Args:
        rows: [R] sums of the rows.
        columns: [C] sums of the columns; the same total.
    """
    total = sum(columns)
    if total == 0:
        return [[0] * len(columns) for _ in rows]
    up_to = [0, *accumulate(columns)]
    corners = [[whole * part // total for part in up_to] for whole in [0, *accumulate(rows)]]
    return [
        [b[i + 1] - b[i] - a[i + 1] + a[i] for i in range(len(columns))]
        for a, b in pairwise(corners)
    ]


@dataclass(frozen=True, slots=True)
class FunctionBins:
    """A native function of one process, per stretch of time, summed over threads."""

    inclusive_ns: NDArray[np.int64]  # [N]
    calls: NDArray[np.int64]  # [N] begun in each


def bin_functions(
    timeline: Timeline, ids: list[int], edges_ns: NDArray[np.int64]
) -> dict[int, FunctionBins]:
    """Time inside native functions per stretch of time.

    The time inside up to t is the sum of t - begin over all calls begun, less the sum of t - end
    over all that ended. Calls within one of the same function are counted, and have no time.

    Args:
        timeline: of the process.
        ids: of the functions.
        edges_ns: [N + 1] ascending, ns since the process's base.
    """
    sums = CallBins(ids, edges_ns)
    sums.add(timeline)
    return sums.result()


class CallBins:
    """Native functions per stretch of time, slice by slice; see `bin_functions`.

    Args:
        ids: of the functions.
        edges_ns: [N + 1] ascending, ns since the process's base.
    """

    def __init__(self, ids: list[int], edges_ns: NDArray[np.int64]) -> None:
        self._ids, self._edges_ns = ids, np.ascontiguousarray(edges_ns, np.int64)
        self._places = np.full(2 * layout.MAX_IDS, -1, np.int16)  # by code
        for place, each in enumerate(ids):
            self._places[2 * each : 2 * each + 2] = place
        # What begins at the very end counts, too.
        self._until = np.append(edges_ns[:-1], edges_ns[-1] + 1)
        zeros = np.zeros(len(edges_ns) - 1, np.int64)
        self._found = {each: FunctionBins(zeros.copy(), zeros.copy()) for each in ids}
        self._open: dict[tuple[int, int], list[int]] = {}  # (thread, id): begins

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        from redline.profile import _sweep

        for thread in timeline.threads:
            times, codes = thread.clock.times_ns, thread.rows[1]
            shape = len(self._ids), len(self._edges_ns) + 1
            tables = _sweep.tally(times, codes, self._places, self._edges_ns, len(self._ids))
            counts, sums, calls = (np.frombuffer(t, np.int64).reshape(shape) for t in tables[:3])
            least, left = (np.frombuffer(column, np.int64) for column in tables[3:])
            open_ns = counts.cumsum(1)[:, :-1] * self._edges_ns - sums.cumsum(1)[:, :-1]
            for place, (each, found) in enumerate(self._found.items()):
                # Calls that began, or end, in another slice are told one by one.
                if least[place] < 0 or left[place] or (thread.index, each) in self._open:
                    self._add_pairs(thread, each)
                else:
                    found.inclusive_ns[:] += np.diff(open_ns[place])
                    found.calls[:] += calls[place, 1:-1]

    def _add_pairs(self, thread: Decoded, each: int) -> None:
        codes = thread.rows[1]
        is_stop = (codes == layout.CODE_WINDOW_OFF) | (codes == layout.CODE_THREAD_END)
        stops = thread.times_of(np.flatnonzero(is_stop))
        rows = np.flatnonzero(codes >> 1 == each)
        is_begin = (codes[rows] & 1) == 0
        place = thread.index, each
        self._add(self._found[each], place, thread.times_of(rows), is_begin, stops)

    def _add(
        self,
        found: FunctionBins,
        place: tuple[int, int],
        times: NDArray[np.int64],
        is_begin: NDArray[np.bool_],
        stops: NDArray[np.int64],
    ) -> None:
        """Those calls that end in this slice."""
        opened = self._open.pop(place, [])
        if len(times) == 0 and not opened:
            return
        calls, begins, ends, left = _paired(times, is_begin, stops, opened)
        if left:
            self._open[place] = left
        edges_ns = self._edges_ns
        found.inclusive_ns[:] += np.diff(_elapsed(begins, edges_ns) - _elapsed(ends, edges_ns))
        found.calls[:] += np.diff(np.searchsorted(calls, self._until, side="left"))

    def result(self) -> dict[int, FunctionBins]:
        """After the last slice."""
        return self._found


def held(stream: Stream, edges_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N] ns of each stretch during which a stream of 0 and 1 was 1.

    Args:
        stream: that ends at 0.
        edges_ns: [N + 1] ascending, of the same clock.
    """
    times, states = stream
    changes = np.diff(np.concatenate([[0], states.astype(np.int64)]))
    on_ns = _elapsed(times[changes > 0], edges_ns) - _elapsed(times[changes < 0], edges_ns)
    return np.diff(on_ns)


def _elapsed(times: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N] the sum of `at - time` over all times before each of `at`."""
    before = np.searchsorted(times, at, side="right")
    sums = np.concatenate([[0], np.cumsum(times)])
    return before * at - sums[before]


def _paired(
    times: NDArray[np.int64],
    is_begin: NDArray[np.bool_],
    stops: NDArray[np.int64],
    opened: list[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]:
    """The begins of whole calls, begins and ends of the outermost, and begins that are still open.

    A stop ends what is open; a lone end is no call.
    """
    depth = np.cumsum(2 * is_begin.view(np.int8) - 1, dtype=np.int32)
    if not opened and (len(depth) == 0 or (depth.min() >= 0 and depth[-1] == 0)):
        begins, ends = times[is_begin & (depth == 1)], times[~is_begin & (depth == 0)]
        return times[is_begin], begins, ends, []
    calls: list[int] = []
    outermost: list[tuple[int, int]] = []
    events = [(t, 1 if b else 0) for t, b in zip(times.tolist(), is_begin.tolist(), strict=True)]
    for time, kind in sorted(events + [(t, 2) for t in stops.tolist()], key=lambda e: e[0]):
        if kind == 1:
            opened.append(time)
        elif opened:
            outer = opened[0]
            ended = [opened.pop()] if kind == 0 else opened
            calls += ended
            if kind == 2:
                opened = []
            if not opened:
                outermost.append((outer, time))
    return (
        np.array(sorted(calls), np.int64),
        np.array([p[0] for p in outermost], np.int64),
        np.array([p[1] for p in outermost], np.int64),
        opened,
    )
