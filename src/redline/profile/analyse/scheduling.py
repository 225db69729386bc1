"""What the system's scheduler did with each thread: when it slept, and when it had no core.

Events say what a thread was at, not whether it ran. The recorder looks some fifty times a second at
how long each thread ran, and for how long it was ready to and had no core (on Linux). Two things
follow, at that resolution:

- A thread that was ready was neither at work nor waiting for anything but a core: level `ready`.
- A thread that slept, while no event told of a wait, waited: in a call that began while the probe
  was off, for the disk, or in light mode.

Where that was a thread says itself, at an event long after the one before: how much of the time in
between it had no core, or slept. What no thread says (an earlier version's, or one of few events)
is taken from the longest stretches between events: what is interrupted for milliseconds takes
milliseconds.

Of the first, no more is told than work took beyond CPU time: a thread that is woken and gets no
core is ready while its events still say that it waits. The system tells the time once it is over;
what does not fit between two looks lies before them, if the thread was at work then. The second is
told like that only while native calls are observed. While they are not, any stretch may hold a
wait, and only looks between which the thread slept throughout say so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import Decoded, Stream
from redline.profile.reader import Process, Shard

# Shorter stretches are not looked at, and shorter times not told from the clocks' errors.
SHORTEST_READY_NS = 500_000
SHORTEST_SLEEP_NS = 1_000_000
ASLEEP_SHARE = 0.1  # of a tick, in which a thread that slept throughout may have run
SLEEPY_SHARE = 0.2  # of a tick: who slept no longer ran

__all__ = ["Off", "Settled", "Settler", "Settlers", "Ticks", "read_ticks", "scheduled", "sleepy"]


class Off(NamedTuple):
    """Where a thread had no core, or slept, by its own CPU time: between two of its events."""

    begin_ns: NDArray[np.int64]  # [M] of the first of the two, in order
    off_ns: NDArray[np.int64]  # [M]

    def between(self, begin_ns: int, until_ns: int) -> Off:
        """Those that begin between two times, and the one before, which may last into them."""
        at = _that_begin(self.begin_ns, begin_ns, until_ns)
        rows = slice(max(at.start - 1, 0), at.stop)
        return Off(self.begin_ns[rows], self.off_ns[rows])


NOT_OFF = Off(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Ticks:
    """What the system says that one thread did between looks."""

    begin_ns: NDArray[np.int64]  # [N]
    end_ns: NDArray[np.int64]  # [N]
    ran_ns: NDArray[np.int64]  # [N] CPU time
    ready_ns: NDArray[np.int64]  # [N] on the run queue, as told when it was over
    off: Off = field(default_factory=lambda: NOT_OFF)

    def rows(self, begin_ns: int, until_ns: int) -> slice:
        """Of those that begin between two times."""
        return _that_begin(self.begin_ns, begin_ns, until_ns)


@dataclass(frozen=True, slots=True)
class Settled:
    """The same, beside what its events say; `ready_ns` lies where there is room for it."""

    begin_ns: NDArray[np.int64]  # [N]
    end_ns: NDArray[np.int64]  # [N]
    ran_ns: NDArray[np.int64]  # [N] CPU time
    ready_ns: NDArray[np.int64]  # [N] on the run queue, at work by its events
    idle_ns: NDArray[np.int64]  # [N] in a known wait, or not there
    off: Off = field(default_factory=lambda: NOT_OFF)

    @property
    def slept_ns(self) -> NDArray[np.int64]:
        """[N] the rest, known waits among it."""
        return np.maximum(self.end_ns - self.begin_ns - self.ran_ns - self.ready_ns, 0)

    def between(self, begin_ns: int, until_ns: int) -> Settled:
        """Those that begin between two times."""
        at = _that_begin(self.begin_ns, begin_ns, until_ns)
        off = self.off.between(begin_ns, until_ns)
        return Settled(
            self.begin_ns[at],
            self.end_ns[at],
            self.ran_ns[at],
            self.ready_ns[at],
            self.idle_ns[at],
            off,
        )


def _that_begin(times_ns: NDArray[np.int64], begin_ns: int, until_ns: int) -> slice:
    first, last = np.searchsorted(times_ns, [begin_ns, until_ns], side="left")
    return slice(int(first), int(last))


class Settler:
    """Lays what the system says of a thread beside its events, slice by slice.

    Args:
        ticks: of the thread; slices begin and end where some of them do.
    """

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self._idle_ns = ticks.end_ns - ticks.begin_ns  # where it is in no slice, it is not there
        self._begins_idle = np.ones(len(ticks.begin_ns), np.bool_)

    def add(self, thread: Decoded, begin_ns: int, until_ns: int) -> None:
        """The next slice of the thread, between two times."""
        at, stream = self._ticks.rows(begin_ns, until_ns), thread.stream
        begin, end = self._ticks.begin_ns[at], self._ticks.end_ns[at]
        if len(stream[0]) == 0 or len(begin) == 0:
            return
        self._idle_ns[at], self._begins_idle[at] = _idle(stream, _are_idle(thread), begin, end)

    def settled(self) -> Settled:
        """After the last slice."""
        ticks = self._ticks
        room = np.maximum(ticks.end_ns - ticks.begin_ns - ticks.ran_ns - self._idle_ns, 0)
        fitting: list[int] = ticks.ready_ns.tolist()
        rooms, begins_idle = room.tolist(), self._begins_idle.tolist()
        rest = 0
        for i, (fits, is_idle) in reversed(list(enumerate(zip(rooms, begins_idle, strict=True)))):
            told = fitting[i] + rest
            fitting[i] = min(told, fits)
            rest = 0 if is_idle else told - fitting[i]
        ready_ns = np.array(fitting, np.int64)
        return Settled(
            ticks.begin_ns, ticks.end_ns, ticks.ran_ns, ready_ns, self._idle_ns, ticks.off
        )


class Settlers:
    """The same for all threads of a process.

    Args:
        ticks: of each thread by its index; empty where the system does not tell.
    """

    def __init__(self, ticks: dict[int, Ticks]) -> None:
        self._ticks = ticks
        self._found: dict[int, Settler] = {}

    def add(self, threads: list[Decoded], begin_ns: int, until_ns: int) -> None:
        """The next slice of the threads that are there, between two times."""
        for thread in threads if self._ticks else []:
            if thread.index not in self._found:
                self._found[thread.index] = Settler(self._ticks[thread.index])
            self._found[thread.index].add(thread, begin_ns, until_ns)

    def settled(self) -> dict[int, Settled]:
        """After the last slice; empty where the system does not tell."""
        return {index: each.settled() for index, each in self._found.items()}


def read_ticks(process: Process) -> dict[int, Ticks]:
    """The ticks of each thread by its index; empty where the system does not tell."""
    shard = process.scheduler
    if shard is None or len(shard.codes) == 0:
        return {}
    numbers, codes, sound = _numbers(shard)
    if sound < len(shard.codes):
        process.note(
            f"{layout.SCHEDULER_SHARD}: damaged after {sound} rows, the rest is lost (a time that "
            "cannot be)"
        )
    times = numbers[codes == layout.CODE_ANCHOR]
    found: dict[int, Ticks] = defaultdict(lambda: Ticks(times[:0], times[:0], times[:0], times[:0]))
    return found | _ticks_of_threads(times, numbers, codes)


def _numbers(shard: Shard) -> tuple[NDArray[np.int64], NDArray[np.uint16], int]:
    """The numbers of the sound rows and their codes, and how many of the shard's rows are sound."""
    low, codes = shard.deltas.astype(np.int64), shard.codes
    is_high = codes == layout.CODE_HIGH
    wrong = np.flatnonzero(is_high & (low >= layout.LARGEST_HIGH))
    sound = int(wrong[0]) if len(wrong) else len(codes)
    numbers = low[:sound].copy()
    high = np.where(is_high[:sound], numbers << 32, 0)
    numbers[1:] |= high[:-1]
    looks = np.flatnonzero(codes[:sound] == layout.CODE_ANCHOR)
    back = np.flatnonzero(np.diff(numbers[looks]) < 0)
    sound = int(looks[back[0] + 1]) if len(back) else sound
    whole = ~is_high[:sound]
    return numbers[:sound][whole], codes[:sound][whole], sound


def _ticks_of_threads(
    times: NDArray[np.int64], numbers: NDArray[np.int64], codes: NDArray[np.uint16]
) -> dict[int, Ticks]:
    """The ticks of each thread that is looked at.

    Args:
        times: of the looks.
        numbers: [N] of the rows.
        codes: [N].
    """
    looks = np.cumsum(codes == layout.CODE_ANCHOR) - 1
    threads = _held(numbers, codes == layout.TICK_THREAD)
    ran = np.maximum(_held(numbers, codes == layout.TICK_RAN), 0)
    since = np.maximum(_held(numbers, codes == layout.TICK_AT), 0)
    begun = np.flatnonzero((codes == layout.TICK_FIRST) & (looks >= 0))
    first_rows = dict(zip(numbers[begun].tolist(), begun.tolist(), strict=True))
    ready = _by_thread(codes == layout.TICK_READY, threads)
    off = _by_thread(codes == layout.TICK_OFF, threads)
    nothing = np.empty(0, np.int64)
    found: dict[int, Ticks] = {}
    for index, row in first_rows.items():
        told, gone = (rows.get(index, nothing) for rows in (ready, off))
        told, gone = told[told > row], gone[gone > row]
        made = _ticks(times, int(looks[row]), looks[told], ran[told], numbers[told])
        order = gone[np.lexsort((numbers[gone], since[gone]))]
        found[index] = replace(made, off=Off(since[order], numbers[order]))
    return found


def _held(numbers: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] the last chosen number up to each row; -1 before the first."""
    last = np.maximum.accumulate(np.where(chosen, np.arange(len(numbers)), -1))
    return np.where(last >= 0, numbers[last], -1)


def _by_thread(
    chosen: NDArray[np.bool_], threads: NDArray[np.int64]
) -> dict[int, NDArray[np.int64]]:
    """The chosen rows of each thread, in order."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(threads[rows], kind="stable")]
    own, first = np.unique(threads[rows], return_index=True)
    parts = np.split(rows, first[1:])
    return dict(zip(own.tolist(), parts, strict=True)) if len(rows) else {}


def _ticks(
    times: NDArray[np.int64],
    first: int,
    looks: NDArray[np.int64],
    ran_ns: NDArray[np.int64],
    ready_ns: NDArray[np.int64],
) -> Ticks:
    """Of one thread, from its first look on.

    Args:
        times: of all looks.
        first: the look from which on it is looked at.
        looks: [M] that tell something of it.
        ran_ns: [M] since the look before.
        ready_ns: [M].
    """
    begin, end = times[first:-1], times[first + 1 :]
    ran, ready = np.zeros((2, len(begin)), np.int64)
    at = looks - first - 1
    within = (at >= 0) & (at < len(begin))
    ran[at[within]], ready[at[within]] = ran_ns[within], ready_ns[within]
    return Ticks(begin, end, ran, ready)


def sleepy(ticks: Settled) -> Stream:
    """1 in each tick of a good part of which the thread slept."""
    slept = ticks.slept_ns >= SLEEPY_SHARE * (ticks.end_ns - ticks.begin_ns)
    times = np.append(ticks.begin_ns, ticks.end_ns[-1:])
    return times, np.append(slept, [False] * len(ticks.end_ns[-1:])).astype(np.uint32)


def scheduled(thread: Decoded, ticks: Settled, blind: Stream | None) -> Decoded:
    """The thread with the times in which it was ready, or slept unnoticed.

    Args:
        thread: as its events say.
        ticks: of the same thread.
        blind: 1 while native calls were not observed; None if they never were.
    """
    if len(thread.stream[0]) == 0 or len(ticks.begin_ns) == 0:
        return thread
    unseen = ticks.slept_ns - ticks.idle_ns
    throughout = ticks.ran_ns <= ASLEEP_SHARE * (ticks.end_ns - ticks.begin_ns)
    unseen[~throughout & _is_blind(blind, ticks)] = 0
    chosen = (ticks.ready_ns >= SHORTEST_READY_NS) | (unseen >= SHORTEST_SLEEP_NS)
    return _overlaid(thread, _pieces(thread.stream, _are_idle(thread), ticks, unseen, chosen))


def _pieces(
    stream: Stream,
    idle: NDArray[np.bool_],
    ticks: Settled,
    unseen_ns: NDArray[np.int64],
    chosen: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """[N, 3] begin, end and level of what is taken from the longest stretches, in order of time.

    Of each chosen tick the ready time first, then what was slept: from where the thread itself says
    that it had no core, then from the ends of at most `csrc/ticks.c`'s MOST stretches at work.
    """
    from redline.profile import _sweep

    times, numbers = stream
    made = _sweep.lay(
        times,
        numbers,
        idle,
        ticks.begin_ns[chosen],
        ticks.end_ns[chosen],
        ticks.ready_ns[chosen],
        unseen_ns[chosen],
        *ticks.off,
        (SHORTEST_READY_NS, levels.READY, SHORTEST_SLEEP_NS, levels.WAITING),
    )
    pieces = np.frombuffer(made, np.int64).reshape(-1, 3)
    return pieces[np.lexsort(pieces.T[::-1])]


def _is_blind(blind: Stream | None, ticks: Settled) -> NDArray[np.bool_]:
    """[N] whether native calls went unobserved for any part of each tick."""
    if blind is None:
        return np.ones(len(ticks.begin_ns), np.bool_)
    times, states = blind
    before, until = (np.searchsorted(times, each) for each in (ticks.begin_ns, ticks.end_ns))
    held = np.concatenate([[0], states])[before] == 1
    return held | (until > before)


def _are_idle(thread: Decoded) -> NDArray[np.bool_]:
    """Of each state, whether the thread waits in it, or is not there."""
    return np.array([s is None or s.level == levels.WAITING for s in thread.states])


def _idle(
    stream: Stream, idle: NDArray[np.bool_], begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How long a thread was idle between [N] pairs of times, and whether it was at the first.

    Args:
        stream: of states, some at least; before them the thread is not there.
        idle: of each state.
        begin_ns: [N].
        end_ns: [N].
    """
    times, numbers = stream
    known = np.flatnonzero(~idle[numbers])
    if len(known) == 0:
        return end_ns - begin_ns, np.ones(len(begin_ns), np.bool_)
    begins, ends = times[known], times[np.minimum(known + 1, len(times) - 1)]
    if known[-1] == len(times) - 1:
        ends[-1] = np.iinfo(np.int64).max  # the last state has no end
    before = np.concatenate([[0], np.cumsum(ends[:-1] - begins[:-1])])

    def total(at: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(begins, at, side="right") - 1
        found = before[place] + np.minimum(at, ends[place]) - begins[place]
        return np.where(place >= 0, found, 0)

    place = np.searchsorted(begins, begin_ns, side="right") - 1
    works = (place >= 0) & (begin_ns < ends[place])
    return end_ns - begin_ns - (total(end_ns) - total(begin_ns)), ~works


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
            states.append(state.at(key % len(levels.LEVELS)))
    own[rows] = shown[keys]
    changed = np.concatenate([[True], own[1:] != own[:-1]])
    return replace(thread, states=states, stream=(edges[changed], own[changed]))
