"""Threads that wait while the probe is off, which no event says.

In a calibration block native calls are not seen. A thread that was inside one as the block began,
or that blocks within it, would seem to run Python, and to lead the process.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import Decoded

SILENT_NS = 250_000_000  # longer than a block takes while marks end
MIN_IDLE_SHARE = 0.7  # of a silence, in which the thread used no CPU
BEFORE_ALL, AFTER_ALL = -(1 << 62), 1 << 62  # no change of a thread is so early, or so late

__all__ = ["SilenceSeeker", "Wait", "blocked", "silent_waits", "still_waiting"]


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


class Wait(NamedTuple):
    """A time in which a thread waited."""

    thread: int  # its index
    begin_ns: int
    end_ns: int


def silent_waits(threads: list[Decoded]) -> list[Wait]:
    """When calibrating threads waited: see `SilenceSeeker`."""
    seeker = SilenceSeeker()
    seeker.add(threads)
    return seeker.found()


class SilenceSeeker:
    """Finds when the calibrating thread was silent in a block and used no CPU, slice by slice.

    Such a block lasts until a mark ends somewhere. The markers at its two ends hold the CPU time
    of the thread that began it.
    """

    def __init__(self) -> None:
        self._special: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._cpu: dict[int, list[int]] = defaultdict(list)
        self._silences: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._last_change: dict[int, int] = {}
        self._last_ns = 0

    def add(self, threads: list[Decoded]) -> None:
        """The next slice of a process."""
        for thread in threads:
            codes = thread.special_codes
            chosen = (codes == layout.CODE_PROBE_ON) | (codes == layout.CODE_PROBE_OFF)
            self._special[thread.index] += zip(
                thread.special_times[chosen].tolist(),
                (codes[chosen] == layout.CODE_PROBE_ON).tolist(),
                strict=True,
            )
            self._cpu[thread.index] += thread.special_values[codes == layout.CODE_CPU].tolist()
            self._last_ns = max(self._last_ns, thread.last_ns)
            self._look_for_silence(thread)

    def _look_for_silence(self, thread: Decoded) -> None:
        times = thread.stream[0]
        if len(times) and thread.states[int(thread.stream[1][0])] == thread.before:
            times = times[1:]  # what lasts into the slice is no change
        if len(times) == 0:
            return
        edges = np.append(self._last_change.get(thread.index, BEFORE_ALL), times)
        long = np.flatnonzero(np.diff(edges) >= SILENT_NS)
        self._silences[thread.index] += zip(
            edges[long].tolist(), edges[long + 1].tolist(), strict=True
        )
        self._last_change[thread.index] = int(times[-1])

    def found(self) -> list[Wait]:
        """After the last slice."""
        waits: list[Wait] = []
        for index, begin_ns, end_ns, cpu_ns, ended_by_itself in self._blocks():
            last = self._last_change.get(index, BEFORE_ALL), AFTER_ALL
            silent: list[tuple[int, int]] = []
            for a, b in [*self._silences[index], last]:
                if b <= begin_ns or a >= end_ns:
                    continue
                until = b
                if b >= end_ns:
                    later = self._last_ns if b == AFTER_ALL else b
                    until = end_ns if ended_by_itself else later
                if until - max(a, begin_ns) >= SILENT_NS:
                    silent.append((max(a, begin_ns), until))
            silence_ns = sum(min(b, end_ns) - a for a, b in silent)
            if silent and end_ns - begin_ns - cpu_ns >= MIN_IDLE_SHARE * silence_ns:
                waits += [Wait(index, a, b) for a, b in silent]
        return waits

    def _blocks(self) -> Iterator[tuple[int, int, int, int, bool]]:
        """(thread, begin, end, CPU time of the thread in between, whether it ended it itself)."""
        markers: list[tuple[int, bool, int, int]] = []
        for index, own in self._special.items():
            if len(own) == len(self._cpu[index]):
                markers += [
                    (time, on, cpu, index)
                    for (time, on), cpu in zip(own, self._cpu[index], strict=True)
                ]
        markers.sort(key=lambda marker: marker[0])
        for begin, end in itertools.pairwise(markers):
            if not begin[1] and end[0] - begin[0] >= SILENT_NS:
                yield begin[3], begin[0], end[0], end[2] - begin[2], begin[3] == end[3]


def blocked(thread: Decoded, waits: list[Wait], begin_ns: int, until_ns: int) -> Decoded:
    """Let a thread wait where it did.

    Args:
        thread: a slice of it.
        waits: of all threads of the process.
        begin_ns: of the slice.
        until_ns: its end.
    """
    for wait in waits:
        begin, end = max(wait.begin_ns, begin_ns), min(wait.end_ns, until_ns)
        if wait.thread == thread.index and end > begin:
            thread = _let_wait(thread, begin, end)
    return thread


def _let_wait(thread: Decoded, begin_ns: int, end_ns: int) -> Decoded:
    """From one time, at which nothing or its state changes, to another."""
    times, numbers = thread.stream
    at = int(np.searchsorted(times, begin_ns, side="right")) - 1
    number = int(numbers[at]) if at >= 0 else 0
    state = thread.states[number]
    if state is None:
        return thread
    states = [*thread.states, state.at(levels.WAITING)]
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
