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
    Key,
    Mark,
    compute_cells,
    observed,
    split_exactly,
    stretches,
    unattributed,
)
from redline.profile.analyse.timeline import Stream, Timeline
from redline.profile.report.trace import row_times

__all__ = ["FunctionBins", "bin_cells", "bin_functions", "held", "spread"]


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
    number = len(edges_ns) - 1
    seen: dict[Key, NDArray[np.int64]] = defaultdict(lambda: np.zeros(number, np.int64))
    shares = BlindShares()
    blind: dict[tuple[int, Mark], dict[Key, NDArray[np.int64]]] = defaultdict(
        lambda: defaultdict(lambda: np.zeros(number, np.int64))
    )
    near = stretches(timeline)
    edges = np.unique(
        np.concatenate([edges_ns, near[(near > edges_ns[0]) & (near < edges_ns[-1])]])
    )
    bins = np.searchsorted(edges_ns, edges[:-1], side="right") - 1
    stretch_of = np.searchsorted(near, np.maximum(edges[:-1], 0), side="right") - 1
    for piece, (key, mark, unseen, ns) in observed(timeline, edges, gpu_busy, gpu_api):
        at, stretch = int(bins[piece]), int(stretch_of[piece])
        if unseen:
            blind[stretch, mark][key][at] += ns
        else:
            seen[key][at] += ns
            shares.add(stretch, mark, key, ns)
    unseen_ns = np.zeros(number, np.int64)
    for (stretch, mark), keys in blind.items():
        columns = np.sum(list(keys.values()), axis=0)
        unseen_ns += columns
        known = shares.of(stretch, mark)
        if known:
            parts = split_exactly(int(columns.sum()), list(known.values()))
            for key, row in zip(known, spread(parts, columns.tolist()), strict=True):
                seen[key] += np.array(row, np.int64)
        else:
            for key, row in keys.items():
                seen[unattributed(key)] += row
    # The cells were split in smaller parts, rounded each: the few ns that differ go to one bin.
    at = int(unseen_ns.argmax())
    for key, ns in compute_cells(timeline, gpu_busy, gpu_api).time_ns.items():
        seen[key][at] += ns - int(seen[key].sum())
    return dict(seen)


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

    The time inside up to t is the integral of the number of open calls: the sum of t - begin over
    all calls begun, less the sum of t - end over all that ended.

    Args:
        timeline: of the process.
        ids: of the functions.
        edges_ns: [N + 1] ascending, ns since the process's base.
    """
    number = len(edges_ns) - 1
    zeros = np.zeros(number, np.int64)
    until = np.append(edges_ns[:-1], edges_ns[-1] + 1)  # what begins at the very end counts, too
    found = {each: FunctionBins(zeros.copy(), zeros.copy()) for each in ids}
    for shard in timeline.process.threads:
        times, codes = row_times(shard), shard.codes
        stops = times[(codes == layout.CODE_WINDOW_OFF) | (codes == layout.CODE_THREAD_END)]
        chosen = np.flatnonzero(np.isin(codes >> 1, np.array(ids, np.uint16)))
        chosen = chosen[np.argsort(codes[chosen] >> 1, kind="stable")]
        times, codes = times[chosen], codes[chosen]
        for each in ids:
            first, last = np.searchsorted(codes >> 1, [each, each + 1])
            rows = slice(int(first), int(last))
            begins, ends = _paired(times[rows], (codes[rows] & 1) == 0, stops)
            open_ns = _elapsed(begins, edges_ns) - _elapsed(ends, edges_ns)
            found[each].inclusive_ns[:] += np.diff(open_ns)
            found[each].calls[:] += np.diff(np.searchsorted(begins, until, side="left"))
    return found


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
    times: NDArray[np.int64], begins: NDArray[np.bool_], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The begins and ends of whole calls: a stop ends what is open, a lone end is no call."""
    depth = np.cumsum(np.where(begins, 1, -1))
    if len(depth) == 0 or (depth.min() >= 0 and depth[-1] == 0):
        return times[begins], times[~begins]
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    events = [(t, 1 if b else 0) for t, b in zip(times.tolist(), begins.tolist(), strict=True)]
    for time, kind in sorted(events + [(t, 2) for t in stops.tolist()], key=lambda e: e[0]):
        if kind == 1:
            opened.append(time)
        elif kind == 0 and opened:
            pairs.append((opened.pop(), time))
        elif kind == 2:
            pairs += [(begin, time) for begin in opened]
            opened.clear()
    return (
        np.array(sorted(p[0] for p in pairs), np.int64),
        np.array(sorted(p[1] for p in pairs), np.int64),
    )
