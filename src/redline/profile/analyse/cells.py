"""The cells: how long each process spent in each (phase, operation, level), GPU busy or not.

Exact: a process's cells sum to the time it was recorded for, in integer nanoseconds. The time in
calibration blocks, when the native boundary was not observed, is split like the observed time of
the same phase and marked operation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.timeline import OTHER, State, Stream, Timeline

Key = tuple[str, str, str, bool]  # phase, operation, level, GPU busy

__all__ = [
    "Cells",
    "Key",
    "compute_cells",
    "level_with_api",
    "operation_name",
    "sweep_numpy",
    "sweep_streams",
]


@dataclass(frozen=True, slots=True)
class Cells:
    """Where one process's time went."""

    time_ns: dict[Key, int]
    imputed_ns: int  # of these, time that was split by what was observed at other times


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
    never = np.empty(0, np.int64), np.empty(0, np.uint32)
    gpu, api = gpu_busy or never, gpu_api or never
    streams = [timeline.lead, timeline.phase, gpu, api, timeline.window, timeline.blind]
    calls = 3 if len(api[0]) else 1
    sizes = [len(timeline.states), len(timeline.phases), 2, calls, 2, 2]
    end_ns = max(timeline.end_ns, 0)
    table = sweep_streams(streams, sizes, 0, end_ns)[:, :, :, :, 1, :]
    seen: dict[Key, int] = defaultdict(int)
    by_mark: dict[tuple[str, int, bool], dict[Key, int]] = defaultdict(lambda: defaultdict(int))
    blind: list[tuple[tuple[str, int, bool], Key, int]] = []
    for index in np.argwhere(table).tolist():
        number, phase_number, busy, call, unseen = index
        state, phase = timeline.states[number], timeline.phases[phase_number]
        ns = int(table[tuple(index)])
        level = levels.LEVELS[level_with_api(state.level, call)]
        key = (phase, operation_name(timeline, state), level, bool(busy))
        mark = (phase, state.marked, bool(busy))
        if unseen:
            blind.append((mark, key, ns))
        else:
            seen[key] += ns
            by_mark[mark][key] += ns
    imputed = 0
    for mark, key, ns in blind:
        imputed += ns
        known = by_mark.get(mark)
        if known:
            keys = list(known)
            for each, part in zip(keys, split_exactly(ns, list(known.values())), strict=True):
                seen[each] += part
        else:
            phase, operation, _, busy = key
            seen[phase, operation, levels.LEVELS[levels.UNATTRIBUTED], busy] += ns
    return Cells({key: ns for key, ns in seen.items() if ns}, imputed)


def level_with_api(level: int, call: int) -> int:
    """The level, given that the process is (1) or waits (2) in a call of the GPU's API, or not."""
    if call == 0 or level in (levels.WAITING, levels.SIMULATOR):
        return level
    return levels.CUDA_API if call == 1 else levels.WAITING


def operation_name(timeline: Timeline, state: State) -> str:
    """The innermost operation's name; `other` where there is none."""
    name = timeline.process.names.get(state.operation)
    return name.name if name is not None else OTHER
