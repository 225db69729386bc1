"""Threads that wait while the probe is off, which no event says.

In a calibration block native calls are not seen. A thread that was inside one as the block began,
or that blocks within it, would seem to run Python, and to lead the process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import Decoded, State

SILENT_NS = 250_000_000  # longer than a block takes while marks end
MIN_IDLE_SHARE = 0.7  # of a silence, in which the thread used no CPU

__all__ = ["blocked", "still_waiting"]


def still_waiting(thread: Decoded, blind_ns: NDArray[np.int64]) -> Decoded:
    """Let a thread that waited when the probe went off wait until its next event.

    The recorder closes all native calls there, and the end of one that lasts through the block is
    not recorded.

    Args:
        thread: as its events say.
        blind_ns: [M] when the probe went off.
    """
    times, numbers = thread.stream
    waits = np.array([s is not None and s.level == levels.WAITING for s in thread.states])
    gone = np.array([s is None for s in thread.states])
    first = np.searchsorted(times, blind_ns, side="left")
    last = np.searchsorted(times, blind_ns, side="right") - 1
    closed = (first > 0) & (last >= first)
    first, last = first[closed], last[closed]
    chosen = waits[numbers[first - 1]] & ~gone[numbers[last]]
    if not chosen.any():
        return thread
    mended = numbers.copy()
    mended[last[chosen]] = numbers[first[chosen] - 1]
    return replace(thread, stream=(times, mended))


def blocked(threads: list[Decoded]) -> list[Decoded]:
    """Let the calibrating thread wait where it was silent in a block and used no CPU.

    Such a block lasts until a mark ends somewhere. The markers at its two ends hold the CPU time
    of the thread that began it.

    Args:
        threads: of a process.
    """
    found = list(threads)
    for index, begin_ns, end_ns, cpu_ns, ended_by_itself in _blocks(threads):
        thread = found[index]
        times = thread.stream[0]
        inside = times[(times > begin_ns) & (times < end_ns)].tolist()
        later = times[times >= end_ns]
        until = end_ns
        if not ended_by_itself:
            until = int(later[0]) if len(later) else max(each.last_ns for each in threads)
        edges = [begin_ns, *inside, until]
        silent = [(a, b) for a, b in itertools.pairwise(edges) if b - a >= SILENT_NS]
        silence_ns = sum(min(b, end_ns) - a for a, b in silent)
        if silent and end_ns - begin_ns - cpu_ns >= MIN_IDLE_SHARE * silence_ns:
            for a, b in silent:
                thread = _let_wait(thread, a, b)
        found[index] = thread
    return found


def _blocks(threads: list[Decoded]) -> Iterator[tuple[int, int, int, int, bool]]:
    """(thread, begin, end, CPU time of the thread in between, whether it ended it itself)."""
    markers: list[tuple[int, bool, int, int]] = []
    for index, thread in enumerate(threads):
        codes = thread.special_codes
        chosen = (codes == layout.CODE_PROBE_ON) | (codes == layout.CODE_PROBE_OFF)
        cpu = thread.special_values[codes == layout.CODE_CPU]
        if len(cpu) == chosen.sum():
            times = thread.special_times[chosen].tolist()
            on = (codes[chosen] == layout.CODE_PROBE_ON).tolist()
            markers += zip(times, on, cpu.tolist(), [index] * len(on), strict=True)
    markers.sort(key=lambda marker: marker[0])
    for begin, end in itertools.pairwise(markers):
        if not begin[1] and end[0] - begin[0] >= SILENT_NS:
            yield begin[3], begin[0], end[0], end[2] - begin[2], begin[3] == end[3]


def _let_wait(thread: Decoded, begin_ns: int, end_ns: int) -> Decoded:
    """From one time, at which nothing or its state changes, to another."""
    times, numbers = thread.stream
    at = int(np.searchsorted(times, begin_ns, side="right")) - 1
    number = int(numbers[at]) if at >= 0 else 0
    state = thread.states[number]
    if state is None:
        return thread
    states = [*thread.states, State(state.operation, state.marked, levels.WAITING)]
    before, after = times < begin_ns, times >= end_ns
    resumed = [] if after.any() and times[after][0] == end_ns else [end_ns]
    return replace(
        thread,
        states=states,
        stream=(
            np.concatenate([times[before], [begin_ns], resumed, times[after]]).astype(np.int64),
            np.concatenate(
                [numbers[before], [len(states) - 1], [number] * len(resumed), numbers[after]]
            ).astype(np.uint32),
        ),
    )
