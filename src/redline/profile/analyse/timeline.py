"""One process's events as streams of states over time.

A stream is `(times [N] int64 ns, states [N] uint32)`: state `states[i]` holds from `times[i]` to
`times[i + 1]`; before the first time the state is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.blocked import blocked, still_waiting
from redline.profile.analyse.decoded import Decoded, State, Stream, decode
from redline.profile.analyse.gaps import named_gaps
from redline.profile.analyse.scheduling import read_ticks, scheduled
from redline.profile.marks import OTHER
from redline.profile.reader import Process

NO_PHASE = ""
# Who leads is the least idle: one that runs, else one that would, else one that waits.
IDLE_RANKS = {levels.READY: 1, levels.WAITING: 2}
ABSENT_RANK = 3

__all__ = ["OTHER", "Decoded", "State", "Stream", "Timeline", "build_timeline", "decode"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A process over time: who leads, in which phase, what was being observed."""

    process: Process
    threads: list[Decoded]
    states: list[State]  # of `lead`; 0 is: nothing known
    lead: Stream
    phases: list[str]  # names of the states of `phase`; 0 is no phase
    phase: Stream
    window: Stream  # 1 while recording
    blind: Stream  # 1 while the native boundary was not observed, for calibration
    end_ns: int


def build_timeline(process: Process) -> Timeline:
    """Decode all threads of a process and let one lead at each instant.

    The first thread leads unless it waits or is gone; then the next that does not wait. So a
    process counts as waiting only while all its threads wait.
    """
    threads = [decode(process, shard) for shard in process.threads]
    blind = _switch(threads, layout.CODE_PROBE_OFF, layout.CODE_PROBE_ON)
    begins = blind[0][blind[1] == 1]
    threads = [still_waiting(thread, begins) for thread in threads]
    ticks = read_ticks(process)
    if ticks:
        seen = blind if process.start.get("mode") == "full" else None
        threads = [scheduled(thread, ticks[thread.index], seen) for thread in threads]
    else:
        threads = blocked(threads)
    threads = [named_gaps(process, thread) for thread in threads]
    table: dict[State, int] = {State(0, 0, levels.PYTHON): 0}
    streams: list[tuple[Decoded, NDArray[np.uint32], NDArray[np.bool_]]] = []
    for thread in threads:
        numbers = [0 if s is None else table.setdefault(s, len(table)) for s in thread.states]
        gone = np.array([s is None for s in thread.states])
        streams.append((thread, np.array(numbers, np.uint32), gone))
    # State 0 of the merged streams means "not there"; the others move up by one.
    absent = [
        (t.stream[0], np.where(gone[t.stream[1]], 0, numbers[t.stream[1]] + 1).astype(np.uint32))
        for t, numbers, gone in streams
    ]
    states = list(table)
    idle = bytes([ABSENT_RANK, *(IDLE_RANKS.get(s.level, 0) for s in states)])
    lead = _first_busy(absent, idle)
    phases, phase = _phases(process, threads)
    return Timeline(
        process=process,
        threads=threads,
        states=[State(0, 0, levels.PYTHON), *states],
        lead=lead,
        phases=phases,
        phase=phase,
        window=_switch(threads, layout.CODE_WINDOW_ON, layout.CODE_WINDOW_OFF),
        blind=blind,
        end_ns=_end_of(process, threads),
    )


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


def _end_of(process: Process, threads: list[Decoded]) -> int:
    """The last instant that is known of, ns since the base."""
    if process.end is not None:
        return int(process.end["time_ns"]) - process.base_ns
    last = [thread.last_ns for thread in threads]
    if process.monitor is not None:
        last.append(decode(process, process.monitor).last_ns)
    return max(last, default=0)


def _special(threads: list[Decoded], wanted: set[int]) -> list[tuple[int, int]]:
    """(time, code) of these codes in all threads, in time order."""
    found: list[tuple[int, int]] = []
    for thread in threads:
        chosen = np.isin(thread.special_codes, list(wanted))
        found += zip(
            thread.special_times[chosen].tolist(),
            thread.special_codes[chosen].tolist(),
            strict=True,
        )
    return sorted(found)


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


def _phases(process: Process, threads: list[Decoded]) -> tuple[list[str], Stream]:
    """The innermost phase of the process at each time."""
    ids = {name.id: name.name for name in process.names.values() if name.kind == "phase"}
    numbers: dict[str, int] = {NO_PHASE: 0}
    codes = {2 * number + end for number in ids for end in (0, 1)}
    windows = {layout.CODE_WINDOW_OFF}
    stack: list[int] = []
    points: list[tuple[int, int]] = []
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
