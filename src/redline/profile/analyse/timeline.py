"""One process's events as streams of states over time.

A stream is `(times [N] int64 ns, states [N] uint32)`: state `states[i]` holds from `times[i]` to
`times[i + 1]`; before the first time the state is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.blocked import Wait, blocked, silent_waits, still_waiting
from redline.profile.analyse.decoded import (
    FOREVER,
    Cursor,
    Decoded,
    State,
    Stream,
    decode,
    states_at,
)
from redline.profile.analyse.gaps import Gaps, gaps_of
from redline.profile.analyse.own_threads import ProgramThreads
from redline.profile.analyse.scheduling import (
    Settled,
    Settlers,
    read_ticks,
    scheduled,
    sleepy,
)
from redline.profile.marks import OTHER
from redline.profile.reader import Process

NO_PHASE = ""
# Who leads is the least idle: one that runs, else one that perhaps does, else one that would, else
# one that waits.
DOUBT_RANK = 1
IDLE_RANKS = {levels.READY: 2, levels.WAITING: 3}
ABSENT_RANK = 4

__all__ = [
    "OTHER",
    "Decoded",
    "Follower",
    "Slice",
    "State",
    "Stream",
    "Timeline",
    "assemble",
    "build_timeline",
    "decode",
    "end_of",
]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A process over time: who leads, in which phase, what was being observed.

    Of the whole recording, or of a slice of it (see `slices`). The streams of a slice begin with
    the states that last into it.
    """

    process: Process
    threads: list[Decoded]
    states: list[State]  # of `lead`; 0 is: nothing known
    lead: Stream
    phases: list[str]  # names of the states of `phase`; 0 is no phase
    phase: Stream
    window: Stream  # 1 while recording
    blind: Stream  # 1 while the native boundary was not observed, for calibration
    end_ns: int  # of the recording
    all_blind: Stream | None = None  # `blind` of the whole recording; None: this is the whole
    num_threads: int = 1  # of the program, in the whole recording
    begin_ns: int = 0  # of the slice
    until_ns: int = FOREVER  # of the slice, which holds all events before

    @property
    def span_ns(self) -> tuple[int, int]:
        """From when to when something was recorded in it; empty where that is over."""
        end = max(self.end_ns, 0)
        return min(self.begin_ns, end), min(self.until_ns, end)

    @property
    def is_alone(self) -> bool:
        """Whether the program has but one thread in the process, in all of the recording."""
        return self.num_threads < 2

    @property
    def is_last(self) -> bool:
        """Whether nothing follows this slice."""
        return self.until_ns == FOREVER


@dataclass(frozen=True, slots=True)
class Slice:
    """What the events of a process say between two times."""

    begin_ns: int
    until_ns: int
    threads: list[Decoded]
    blind: Stream
    window: Stream
    phases: list[str]
    phase: Stream
    switched: Stream  # of `blind` what is not of an earlier slice

    def cut(self, stream: Stream) -> Stream:
        """Without what begins after the slice."""
        if self.until_ns == FOREVER:
            return stream
        last = int(np.searchsorted(stream[0], self.until_ns, side="left"))
        return stream[0][:last], stream[1][:last]


def build_timeline(process: Process) -> Timeline:
    """Decode all threads of a process and let one lead at each instant.

    The first thread leads unless it waits or is gone; then the next that does not wait. So a
    process counts as waiting only while all its threads wait. While the probe is off, no event says
    that a thread waits: one outside all marks that slept a good part of the time meanwhile, as the
    scheduler says, gives way to one that is at work.
    """
    part = Follower(process).advance(0, FOREVER)
    settlers = Settlers(read_ticks(process))
    settlers.add(part.threads, 0, FOREVER)
    ticks = settlers.settled()
    waits = [] if ticks else silent_waits(part.threads)
    gaps = {thread.index: gaps_of(process, [thread]) for thread in part.threads}
    end_ns = end_of(process, max((thread.last_ns for thread in part.threads), default=0))
    for source in process.sources:
        if source.problem is not None:
            process.note(f"{source.path.name}: {source.problem}")
    program = ProgramThreads(process)
    program.add(part.threads)
    return assemble(process, part, ticks, waits, gaps, end_ns, part.blind, program.number())


class Follower:
    """Follows the events of a process from one time to the next.

    Args:
        process: to follow.
        begins_ns: per shard when each of its pieces begins; None: it is followed at once.
    """

    def __init__(self, process: Process, begins_ns: list[NDArray[np.int64]] | None = None) -> None:
        self._process, self._in_slices = process, begins_ns is not None
        sources = process.sources
        begins: Sequence[NDArray[np.int64] | None] = begins_ns or [None] * len(sources)
        self._cursors = [Cursor(process, s, b) for s, b in zip(sources, begins, strict=True)]
        self._blind = self._window = 0
        self._open_phases: list[int] = []
        self._ends: dict[int, tuple[State | None, State | None]] = {}

    def advance(self, begin_ns: int, until_ns: int) -> Slice:
        """What happened between two times; the first is where the last call ended."""
        decoded = [
            cursor.advance(begin_ns, until_ns)
            for cursor in self._cursors
            if not (self._in_slices and cursor.is_idle(until_ns))
        ]
        switched = _switch(decoded, layout.CODE_PROBE_OFF, layout.CODE_PROBE_ON)
        begins = switched[0][switched[1] == 1]
        threads = [self._still_waiting(thread, begin_ns, begins) for thread in decoded]
        windows = _switch(threads, layout.CODE_WINDOW_ON, layout.CODE_WINDOW_OFF)
        blind = _from(begin_ns, self._blind, switched)
        window = _from(begin_ns, self._window, windows)
        self._blind, self._window = _last(blind), _last(window)
        phases, phase = _phases(self._process, threads, self._open_phases, begin_ns)
        return Slice(begin_ns, until_ns, threads, blind, window, phases, phase, switched)

    def _still_waiting(
        self, thread: Decoded, begin_ns: int, blind_ns: NDArray[np.int64]
    ) -> Decoded:
        """As `still_waiting`, also where it was in an earlier slice that the probe went off."""
        plain, shown = self._ends.get(thread.index, (None, None))
        found = _still_waiting_after(thread, plain, begin_ns, blind_ns)
        times, numbers = found.stream
        lasts = (
            len(times) > 0
            and times[0] == begin_ns
            and thread.states[int(thread.stream[1][0])] == plain
        )
        if lasts and shown != plain:
            own = numbers.copy()
            own[0] = len(found.states)
            found = replace(found, stream=(times, own), states=[*found.states, shown])
        found = replace(found, before=shown)
        self._ends[thread.index] = thread.last_state(), found.last_state()
        return found


def _still_waiting_after(
    thread: Decoded, plain: State | None, begin_ns: int, blind_ns: NDArray[np.int64]
) -> Decoded:
    """`still_waiting`, also where the probe goes off just as the slice begins."""
    if plain is None or begin_ns not in blind_ns:
        return still_waiting(thread, blind_ns)
    times, numbers = thread.stream
    first = np.array([begin_ns - 1], np.int64), np.array([len(thread.states)], np.uint32)
    stream = np.concatenate([first[0], times]), np.concatenate([first[1], numbers])
    found = still_waiting(replace(thread, stream=stream, states=[*thread.states, plain]), blind_ns)
    return replace(found, stream=(found.stream[0][1:], found.stream[1][1:]))


def assemble(
    process: Process,
    part: Slice,
    ticks: dict[int, Settled],
    waits: list[Wait],
    gaps: dict[int, Gaps],
    end_ns: int,
    all_blind: Stream,
    num_threads: int,
) -> Timeline:
    """The timeline of a slice.

    Args:
        process: it belongs to.
        part: what its events say.
        ticks: of its threads; empty where the system does not tell.
        waits: which no event says, used where there are no ticks.
        gaps: how to name those of each thread.
        end_ns: of the recording.
        all_blind: of the whole recording.
        num_threads: of the program, in the whole recording.
    """
    threads = part.threads
    if ticks:
        seen = part.blind if process.start.get("mode") == "full" else None
        threads = [
            scheduled(thread, ticks[thread.index].between(part.begin_ns, part.until_ns), seen)
            for thread in threads
        ]
    else:
        threads = [blocked(thread, waits, part.begin_ns, part.until_ns) for thread in threads]
    threads = [
        replace(named, stream=part.cut(named.stream))
        for named in (gaps[thread.index].name(thread, part.begin_ns) for thread in threads)
    ]
    naps = [
        sleepy(ticks[t.index].between(part.begin_ns, part.until_ns)) if ticks else _empty()
        for t in threads
    ]
    states, lead = _leading(threads, [_both(part.blind, nap) for nap in naps])
    return Timeline(
        process=process,
        threads=threads,
        states=states,
        lead=lead,
        phases=part.phases,
        phase=part.phase,
        window=part.window,
        blind=part.blind,
        end_ns=end_ns,
        all_blind=all_blind,
        num_threads=num_threads,
        begin_ns=part.begin_ns,
        until_ns=part.until_ns,
    )


def _leading(threads: list[Decoded], doubts: list[Stream]) -> tuple[list[State], Stream]:
    """Who leads at each instant.

    Args:
        threads: of a process.
        doubts: of each, 1 while it may have waited and no event would say so.
    """
    # The states of the merged streams, and which are in doubt. Number 0 means "not there".
    table: dict[tuple[State, bool], int] = {(State(0, 0, levels.PYTHON), False): 1}

    def number(state: State | None, in_doubt: bool) -> int:
        if state is None:
            return 0
        return table.setdefault((state._replace(under=None), in_doubt), len(table) + 1)

    streams: list[Stream] = []
    for thread, doubt in zip(threads, doubts, strict=True):
        sure = np.array([number(s, False) for s in thread.states], np.uint32)
        if len(threads) > 1 and doubt[1].any():
            unsure = np.array([number(s, _is_doubtful(s)) for s in thread.states], np.uint32)
            streams.append(_doubted(thread.stream, sure, unsure, doubt))
        else:
            streams.append((thread.stream[0], sure[thread.stream[1]]))
    ranks = (DOUBT_RANK if doubt else IDLE_RANKS.get(s.level, 0) for s, doubt in table)
    states = [State(0, 0, levels.PYTHON), *(state for state, _ in table)]
    return states, _first_busy(streams, bytes([ABSENT_RANK, *ranks]))


def _both(a: Stream, b: Stream) -> Stream:
    """1 where both are."""
    times = np.union1d(a[0], b[0])
    return times, states_at(a, times) & states_at(b, times)


def _is_doubtful(state: State | None) -> bool:
    """Whether a state says so little that the thread may as well wait."""
    return state is not None and state.level == levels.PYTHON and not state.marked


def _doubted(
    stream: Stream, sure: NDArray[np.uint32], unsure: NDArray[np.uint32], doubt: Stream
) -> Stream:
    """A stream with other numbers for its states: `unsure` where there is doubt, else `sure`."""
    times, numbers = stream
    if len(times) == 0:
        return stream
    extra = doubt[0][doubt[0] > times[0]]
    at = np.searchsorted(times, extra)
    is_new = times[np.minimum(at, len(times) - 1)] != extra
    extra, at = extra[is_new], at[is_new]
    edges, own = np.insert(times, at, extra), np.insert(numbers, at, numbers[at - 1])
    return edges, np.where(states_at(doubt, edges) == 1, unsure[own], sure[own])


def _last(stream: Stream) -> int:
    return int(stream[1][-1]) if len(stream[1]) else 0


def _from(begin_ns: int, state: int, stream: Stream) -> Stream:
    """A stream of a slice, with the state that lasts into it."""
    times, states = stream
    if state == 0 or (len(times) and times[0] == begin_ns):
        return stream
    first = np.array([begin_ns], np.int64), np.array([state], np.uint32)
    return np.concatenate([first[0], times]), np.concatenate([first[1], states])


def _empty() -> Stream:
    return np.empty(0, np.int64), np.empty(0, np.uint32)


def _first_busy(streams: list[Stream], idle: bytes) -> Stream:
    """One stream out of many, in pairs: each event is merged as often as pairs are deep."""
    while len(streams) > 1:
        merged = [_lead(a, b, idle) for a, b in zip(streams[::2], streams[1::2], strict=False)]
        # With an odd number the last one waits for the next round.
        streams = merged + streams[2 * len(merged) :]
    return streams[0] if streams else _empty()


def _lead(a: Stream, b: Stream, idle: bytes) -> Stream:
    from redline.profile import _sweep

    times, states = _sweep.lead(a, b, idle)
    return np.frombuffer(times, np.int64), np.frombuffer(states, np.uint32)


def end_of(process: Process, last_ns: int) -> int:
    """The last instant that is known of, ns since the base.

    Args:
        process: to look at.
        last_ns: of the last event of its threads.
    """
    if process.end is not None:
        return int(process.end["time_ns"]) - process.base_ns
    if process.monitor is not None:
        return max(last_ns, decode(process, process.monitor).last_ns)
    return last_ns


def _special(threads: list[Decoded], wanted: set[int]) -> list[tuple[int, int]]:
    """(time, code) of these codes in all threads, in time order, at ties in each thread's own."""
    found: list[tuple[int, int]] = []
    for thread in threads:
        chosen = np.isin(thread.special_codes, list(wanted))
        found += zip(
            thread.special_times[chosen].tolist(),
            thread.special_codes[chosen].tolist(),
            strict=True,
        )
    # Nested phases around a window begin at one instant: the codes do not say which is inside.
    return sorted(found, key=lambda point: point[0])


def _as_stream(points: list[tuple[int, int]]) -> Stream:
    times: list[int] = []
    states: list[int] = []
    for time, state in points:
        if times and times[-1] == time:
            states[-1] = state
        else:
            times.append(time)
            states.append(state)
    return np.array(times, np.int64), np.array(states, np.uint32)


def _switch(threads: list[Decoded], on: int, off: int) -> Stream:
    return _as_stream([(t, int(code == on)) for t, code in _special(threads, {on, off})])


def _phases(
    process: Process, threads: list[Decoded], stack: list[int], begin_ns: int
) -> tuple[list[str], Stream]:
    """The innermost phase of the process at each time.

    Args:
        process: it belongs to.
        threads: of a slice.
        stack: ids of the phases that are open, kept up to date.
        begin_ns: of the slice.
    """
    ids = {name.id: name.name for name in process.names.values() if name.kind == "phase"}
    numbers: dict[str, int] = {NO_PHASE: 0}
    codes = {2 * number + end for number in ids for end in (0, 1)}
    windows = {layout.CODE_WINDOW_OFF}
    points: list[tuple[int, int]] = []
    if stack:
        points.append((begin_ns, numbers.setdefault(ids[stack[-1]], len(numbers))))
    for time, code in _special(threads, codes | windows):
        if code in windows:
            stack.clear()
        elif code & 1:
            if code >> 1 in stack:
                del stack[len(stack) - 1 - stack[::-1].index(code >> 1)]
        else:
            stack.append(code >> 1)
        name = ids[stack[-1]] if stack else NO_PHASE
        points.append((time, numbers.setdefault(name, len(numbers))))
    return list(numbers), _as_stream(points)
