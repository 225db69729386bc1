"""What the system's scheduler did with each thread: when it slept, and when it had no core.

Events say what a thread was at, not whether it ran. The recorder looks some fifty times a second at
how long each thread ran, and for how long it was ready to and had no core (on Linux). Two things
follow, at that resolution:

- A thread that was ready was neither at work nor waiting for anything but a core: level `ready`.
- A thread that slept, while no event told of a wait, waited: in a call that began while the probe
  was off, for the disk, or in light mode.

The first is taken from the longest stretches between events: what is interrupted for milliseconds
takes milliseconds; but no more of it than work took beyond CPU time. So is the second while native
calls are observed. While they are not, any stretch may hold a wait, and only looks between which
the thread slept throughout say so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import Decoded, State, Stream
from redline.profile.reader import Process, Shard

# Shorter stretches are not looked at, and shorter times not told from the clocks' errors.
SHORTEST_READY_NS = 500_000
SHORTEST_SLEEP_NS = 1_000_000
ASLEEP_SHARE = 0.1  # of a tick, in which a thread that slept throughout may have run
SLEEPY_SHARE = 0.2  # of a tick: who slept no longer ran

__all__ = ["Ticks", "read_ticks", "scheduled", "sleepy"]


@dataclass(frozen=True, slots=True)
class Ticks:
    """What one thread did between looks."""

    begin_ns: NDArray[np.int64]  # [N]
    end_ns: NDArray[np.int64]  # [N]
    ran_ns: NDArray[np.int64]  # [N] CPU time
    ready_ns: NDArray[np.int64]  # [N] on the run queue

    @property
    def slept_ns(self) -> NDArray[np.int64]:
        """[N] the rest."""
        return np.maximum(self.end_ns - self.begin_ns - self.ran_ns - self.ready_ns, 0)

    def between(self, begin_ns: int, until_ns: int) -> Ticks:
        """Those that begin between two times."""
        first, last = np.searchsorted(self.begin_ns, [begin_ns, until_ns], side="left")
        rows = slice(int(first), int(last))
        return Ticks(self.begin_ns[rows], self.end_ns[rows], self.ran_ns[rows], self.ready_ns[rows])


def read_ticks(process: Process) -> dict[int, Ticks]:
    """The ticks of each thread by its index; empty where the system does not tell."""
    shard = process.scheduler
    if shard is None or len(shard.codes) == 0:
        return {}
    times, rows = _rows(shard)
    found: dict[int, Ticks] = defaultdict(lambda: _ticks(times[:0], {}, 0))
    for index, (first, own) in rows.items():
        found[index] = _ticks(times, own, first)
    return found


def _rows(
    shard: Shard,
) -> tuple[NDArray[np.int64], dict[int, tuple[int, dict[int, tuple[int, int]]]]]:
    """Times of the ticks, and per thread its first tick and {tick: (ran, ready)}."""
    times: list[int] = []
    found: dict[int, tuple[int, dict[int, tuple[int, int]]]] = {}
    high, index, ran = 0, -1, 0
    for number, code in zip(shard.deltas.tolist(), shard.codes.tolist(), strict=True):
        if code == layout.CODE_HIGH:
            high = number
        elif code == layout.CODE_ANCHOR:
            times.append(max(high << 32 | number, times[-1] if times else 0))
        elif code == layout.TICK_FIRST and times:
            found[number] = len(times) - 1, {}
        elif code == layout.TICK_THREAD:
            index = number
        elif code == layout.TICK_RAN:
            ran = number
        elif code == layout.TICK_READY and index in found:
            found[index][1][len(times) - 1] = ran, number
    return np.array(times, np.int64), found


def _ticks(times: NDArray[np.int64], rows: dict[int, tuple[int, int]], first: int) -> Ticks:
    """Of one thread, from its first look on.

    Time on the run queue is told once it is over: what is more than fits goes to the ticks before.
    """
    begin, end = times[first:-1], times[first + 1 :]
    ran, ready = np.zeros((2, len(begin)), np.int64)
    for tick, (ran_ns, ready_ns) in rows.items():
        if 0 <= tick - first - 1 < len(begin):
            ran[tick - first - 1], ready[tick - first - 1] = ran_ns, ready_ns
    room = np.maximum(end - begin - ran, 0)
    fitting: list[int] = ready.tolist()
    rooms: list[int] = room.tolist()
    rest = 0
    for i, fits in reversed(list(enumerate(rooms))):
        told = fitting[i] + rest
        fitting[i] = min(told, fits)
        rest = told - fitting[i]
    return Ticks(begin, end, ran, np.array(fitting, np.int64))


def sleepy(ticks: Ticks) -> Stream:
    """1 in each tick of a good part of which the thread slept."""
    slept = ticks.slept_ns >= SLEEPY_SHARE * (ticks.end_ns - ticks.begin_ns)
    times = np.append(ticks.begin_ns, ticks.end_ns[-1:])
    return times, np.append(slept, [False] * len(ticks.end_ns[-1:])).astype(np.uint32)


def scheduled(thread: Decoded, ticks: Ticks, blind: Stream | None) -> Decoded:
    """The thread with the times in which it was ready, or slept unnoticed.

    Args:
        thread: as its events say.
        ticks: of the same thread.
        blind: 1 while native calls were not observed; None if they never were.
    """
    if len(thread.stream[0]) == 0 or len(ticks.begin_ns) == 0:
        return thread
    waits = np.array([s is not None and s.level == levels.WAITING for s in thread.states])
    waited = _waited(thread.stream, waits, ticks)
    unseen = ticks.slept_ns - waited
    # A thread that is woken and gets no core is ready while its events still say that it waits: at
    # work it had no core for no longer than it took more time than CPU time.
    without_core = np.maximum(ticks.end_ns - ticks.begin_ns - waited - ticks.ran_ns, 0)
    ticks = replace(ticks, ready_ns=np.minimum(ticks.ready_ns, without_core))
    throughout = ticks.ran_ns <= ASLEEP_SHARE * (ticks.end_ns - ticks.begin_ns)
    unseen[~throughout & _is_blind(blind, ticks)] = 0
    chosen = (ticks.ready_ns >= SHORTEST_READY_NS) | (unseen >= SHORTEST_SLEEP_NS)
    return _overlaid(thread, _pieces(thread.stream, waits, ticks, unseen, chosen))


def _pieces(
    stream: Stream,
    waits: NDArray[np.bool_],
    ticks: Ticks,
    unseen_ns: NDArray[np.int64],
    chosen: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """[N, 3] begin, end and level of what is taken from the longest stretches, in order of time.

    Of each chosen tick the ready time first, then what was slept, from the ends of at most
    `csrc/ticks.c`'s MOST stretches that are no wait.
    """
    from redline.profile import _sweep

    times, numbers = stream
    made = _sweep.lay(
        times,
        numbers,
        waits,
        ticks.begin_ns[chosen],
        ticks.end_ns[chosen],
        ticks.ready_ns[chosen],
        unseen_ns[chosen],
        (SHORTEST_READY_NS, levels.READY, SHORTEST_SLEEP_NS, levels.WAITING),
    )
    pieces = np.frombuffer(made, np.int64).reshape(-1, 3)
    return pieces[np.lexsort(pieces.T[::-1])]


def _is_blind(blind: Stream | None, ticks: Ticks) -> NDArray[np.bool_]:
    """[N] whether native calls went unobserved for any part of each tick."""
    if blind is None:
        return np.ones(len(ticks.begin_ns), np.bool_)
    times, states = blind
    before, until = (np.searchsorted(times, each) for each in (ticks.begin_ns, ticks.end_ns))
    held = np.concatenate([[0], states])[before] == 1
    return held | (until > before)


def _waited(stream: Stream, waits: NDArray[np.bool_], ticks: Ticks) -> NDArray[np.int64]:
    """[N] how long a wait was known of in each tick."""
    times, numbers = stream
    known = np.flatnonzero(waits[numbers])  # of all stretches the few that wait
    if len(known) == 0:
        return np.zeros(len(ticks.begin_ns), np.int64)
    begins, ends = times[known], times[np.minimum(known + 1, len(times) - 1)]
    if known[-1] == len(times) - 1:
        ends[-1] = np.iinfo(np.int64).max  # the last state has no end
    before = np.concatenate([[0], np.cumsum(ends[:-1] - begins[:-1])])

    def total(at: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(begins, at, side="right") - 1
        found = before[place] + np.minimum(at, ends[place]) - begins[place]
        return np.where(place >= 0, found, 0)

    return total(ticks.end_ns) - total(ticks.begin_ns)


def _overlaid(thread: Decoded, pieces: NDArray[np.int64]) -> Decoded:
    """Put stretches of another level over a thread's states.

    Args:
        thread: whose states they are.
        pieces: [N, 3] begin, end and level of each; they do not overlap.
    """
    if len(pieces) == 0:
        return thread
    times, numbers = thread.stream
    begins, ends, found = pieces[:, 0], pieces[:, 1], pieces[:, 2]
    # What the pieces add is put in between: the stream itself may have a hundred million states.
    extra = np.unique(np.concatenate([begins, ends]))
    extra = extra[extra >= times[0]]
    at = np.searchsorted(times, extra)
    is_new = times[np.minimum(at, len(times) - 1)] != extra
    extra, at = extra[is_new], at[is_new]
    edges, own = np.insert(times, at, extra), np.insert(numbers, at, numbers[at - 1])
    first, after = np.searchsorted(edges, begins), np.searchsorted(edges, ends)
    lengths = after - first
    rows = np.arange(int(lengths.sum())) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
    keys: NDArray[np.int64] = own[rows].astype(np.int64) * len(levels.LEVELS)
    keys += np.repeat(found, lengths)
    states = list(thread.states)
    shown = np.arange(len(states) * len(levels.LEVELS)) // len(levels.LEVELS)
    every: list[int] = np.unique(keys).tolist()
    for key in every:
        state = states[key // len(levels.LEVELS)]
        if state is not None:  # a thread that is gone does not wait
            shown[key] = len(states)
            states.append(State(state.operation, state.marked, key % len(levels.LEVELS)))
    own[rows] = shown[keys]
    changed = np.concatenate([[True], own[1:] != own[:-1]])
    return replace(thread, states=states, stream=(edges[changed], own[changed]))
