"""The calibration cycles of a thread: blocks without the probe between blocks with it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.cells import sweep_streams
from redline.profile.analyse.decoded import FOREVER, Decoded, Stream, states_at
from redline.profile.reader import Process

NOT_MARKED = 0  # no operation's id
# Of a session that are kept: half an hour's of one process on Python 3.11, hours' on others.
MAX_CYCLES = 8192

__all__ = ["Block", "Cycle", "CycleSeeker", "Part", "Room", "find_cycles"]


@dataclass(slots=True)
class Part:
    """One marked operation in a block."""

    ends: int = 0  # of its mark
    ns: int = 0  # in it, time on the run queue aside
    python_ns: int = 0  # of these, interpreted
    callbacks: int = 0
    waiting_ns: int = 0  # of `ns`, known to be spent waiting


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the main thread between two markers."""

    observed: bool
    cpu_ns: int
    parts: dict[str, Part]  # by operation, "" for none


@dataclass(frozen=True, slots=True)
class Cycle:
    """Three blocks in a row, the middle one without the probe."""

    before: Block
    off: Block
    after: Block


def find_cycles(process: Process, thread: Decoded) -> list[Cycle]:
    """The calibration cycles of a thread.

    Args:
        process: it belongs to.
        thread: the whole of it.
    """
    seeker = CycleSeeker(process)
    seeker.add(thread, 0, FOREVER)
    return seeker.found()


@dataclass(slots=True)
class _Open:
    """A block as far as it was seen."""

    observed: bool
    before: bool | None  # whether the probe was on just before, by any thread; None: unknown
    parts: defaultdict[str, Part] = field(default_factory=lambda: defaultdict(Part))
    is_paused: bool = False  # the recording was, in between

    @property
    def settles(self) -> bool:
        """Whether this follows a switch: at its first marker the probe goes on, or off."""
        return self.before == (not self.observed)


class Room:
    """For the cycles of a session, of all its threads.

    A recording of hours has more of them than say anything new. Of more than `most` every second
    one is kept, of twice as many every fourth.
    """

    def __init__(self, most: int = MAX_CYCLES) -> None:
        self._most = most
        self._kept: list[tuple[CycleSeeker, Cycle]] = []
        self._number, self._stride = 0, 1

    def add(self, seeker: CycleSeeker, cycle: Cycle) -> None:
        """One more, which that seeker has found."""
        if self._number % self._stride == 0:
            self._kept.append((seeker, cycle))
        self._number += 1
        if len(self._kept) > self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def of(self, seeker: CycleSeeker) -> list[Cycle]:
        """Those that it has found."""
        return [cycle for found, cycle in self._kept if found is seeker]


class CycleSeeker:
    """The calibration cycles of a thread, slice by slice.

    Args:
        process: the thread's.
        room: for them; without it of its own.
    """

    def __init__(self, process: Process, room: Room | None = None) -> None:
        self._process, self._room = process, room or Room()
        self._open: deque[_Open] = deque()  # from markers on that were seen
        self._cpu: deque[int] = deque()  # of these markers, or ahead of them
        self._last_observed: bool | None = None  # from the last marker on
        self._ahead = 0  # CPU times without a marker
        self._blocks: deque[Block | None] = deque(maxlen=3)  # the last ones; None: disturbed

    def add(
        self, thread: Decoded, begin_ns: int, until_ns: int, blind: Stream | None = None
    ) -> None:
        """The next slice, between two times.

        Args:
            thread: a slice of it.
            begin_ns: of the slice.
            until_ns: its end.
            blind: `Timeline.blind`, where another thread may have ended a block of this one.
        """
        special, codes = thread.special_codes, thread.rows[1]
        is_marker = (special == layout.CODE_PROBE_ON) | (special == layout.CODE_PROBE_OFF)
        times = thread.special_times[is_marker].tolist()
        rows = np.flatnonzero((codes == layout.CODE_PROBE_ON) | (codes == layout.CODE_PROBE_OFF))
        cpu = thread.special_values[special == layout.CODE_CPU].tolist()
        self._cpu += cpu
        self._ahead += len(cpu) - len(rows)
        stretches = _Stretches(self._process, thread, [begin_ns, *times, until_ns], rows)
        before = _states_before(times, begin_ns, blind)
        for k, row in enumerate([-1, *rows.tolist()]):
            if row >= 0:
                own = self._last_observed
                is_on = self._last_observed = bool(codes[row] == layout.CODE_PROBE_ON)
                self._open.append(_Open(is_on, before.get(times[k - 1], own)))
            if self._open and not self._open[-1].settles:
                stretches.add_to(self._open[-1], k)
        while len(self._open) > 1 and len(self._cpu) > 1:
            self._close(self._open.popleft(), self._open[0], self._cpu.popleft())

    def found(self) -> list[Cycle]:
        """After the last slice; none where a damaged session has lost CPU times."""
        return self._room.of(self) if self._ahead == 0 else []

    def _close(self, block: _Open, following: _Open, cpu_ns: int) -> None:
        """A block ends where the next one begins."""
        if block.settles:
            return
        # Another thread may have ended it before, or the recording have paused.
        is_whole = not block.is_paused and following.before in (None, block.observed)
        used_ns = self._cpu[0] - cpu_ns
        # A marker keeps 48 bits of a CPU time: after 78 hours it begins anew.
        is_told = is_whole and used_ns >= 0
        made = Block(block.observed, used_ns, dict(block.parts)) if is_told else None
        self._blocks.append(made)
        self._add_cycle(*self._blocks)

    def _add_cycle(
        self, before: Block | None = None, off: Block | None = None, after: Block | None = None
    ) -> None:
        if before is None or off is None or after is None:
            return
        if not before.observed or off.observed or not after.observed:
            return
        self._room.add(self, Cycle(before, off, after))


def _states_before(times: list[int], begin_ns: int, blind: Stream | None) -> dict[int, bool]:
    """{time: whether the probe was on just before} of a slice's markers, where that is known."""
    if blind is None:
        return {}
    at = np.searchsorted(blind[0], times, side="left") - 1
    states = np.concatenate([blind[1] == 0, [True]])  # the last is the first one's, at -1
    often = Counter(times)  # of several at one time the stream has the last
    return {
        time: on
        for time, on in zip(times, states[at].tolist(), strict=True)
        if time != begin_ns and often[time] == 1
    }


class _Stretches:
    """What a slice says of the stretches between the switches of the probe, all at once.

    Args:
        process: it belongs to.
        thread: the slice.
        bounds_ns: [K + 1] of the stretches.
        rows: [K - 1] of the switches between them, among the thread's rows.
    """

    def __init__(
        self, process: Process, thread: Decoded, bounds_ns: list[int], rows: NDArray[np.int64]
    ) -> None:
        self._bounds_ns, self._rows = np.array(bounds_ns, np.int64), rows
        of_state = [_name(process, s.marked if s else NOT_MARKED) for s in thread.states]
        ends = {n.id: n.name for n in process.names.values() if n.kind == "operation"}
        self._names = list(dict.fromkeys([*of_state, *ends.values()]))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._of_state = np.array([self._numbers[name] for name in of_state], np.int64)
        self._ns, self._python_ns, self._waiting_ns = self._held(thread)
        self._callbacks, self._reports = self._called(thread)
        self._ends = self._ended(thread, ends)
        pauses = np.flatnonzero(thread.rows[1] == layout.CODE_WINDOW_OFF)
        self._is_paused = np.bincount(self._of_rows(pauses), minlength=len(bounds_ns) - 1) > 0
        self._told = self._by_stretch()

    def add_to(self, block: _Open, k: int) -> None:
        """Add the stretch of this number to a block."""
        block.is_paused |= bool(self._is_paused[k])
        for number, ends, ns, python_ns, callbacks, waiting_ns in self._told.get(k, ()):
            part = block.parts[self._names[number]]
            part.ends += ends
            part.ns += ns
            part.python_ns += python_ns
            part.callbacks += callbacks
            part.waiting_ns += waiting_ns

    def _by_stretch(self) -> dict[int, list[tuple[int, ...]]]:
        """{stretch: (operation, ends, ns, python_ns, callbacks, waiting_ns)} of what is there."""
        is_there = (self._ns != 0) | (self._reports != 0) | (self._ends != 0)
        place = stretches, numbers = np.nonzero(is_there)
        tables = self._ends, self._ns, self._python_ns, self._callbacks, self._waiting_ns
        columns = [numbers.tolist(), *(table[place].tolist() for table in tables)]
        found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for k, row in zip(stretches.tolist(), zip(*columns, strict=True), strict=True):
            found[k].append(row)
        return found

    def _zeros(self) -> NDArray[np.int64]:
        """[K, names]."""
        return np.zeros((len(self._bounds_ns) - 1, len(self._names)), np.int64)

    def _of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._rows, rows, side="right")

    def _held(self, thread: Decoded) -> list[NDArray[np.int64]]:
        """Ns in each operation, time on the run queue aside; of these, interpreted; waiting."""
        bounds = self._bounds_ns
        begins = bounds[:-1], np.arange(len(bounds) - 1, dtype=np.uint32)
        sizes = [len(bounds) - 1, len(thread.states)]
        held = sweep_streams([begins, thread.stream], sizes, int(bounds[0]), int(bounds[-1]))
        level = np.array([levels.READY if s is None else s.level for s in thread.states])
        found = [self._zeros() for _ in range(3)]
        chosen = level != levels.READY, level == levels.PYTHON, level == levels.WAITING
        for into, these in zip(found, chosen, strict=True):
            for state in np.flatnonzero(these).tolist():
                into[:, self._of_state[state]] += held[:, state]
        return found

    def _called(self, thread: Decoded) -> list[NDArray[np.int64]]:
        """Callbacks of the probe in each operation, and how often their number was reported."""
        chosen = thread.special_codes == layout.CODE_CALLBACKS
        at_ns, values = thread.special_times[chosen], thread.special_values[chosen]
        states = states_at(thread.stream, at_ns)
        stretch = np.searchsorted(self._bounds_ns, at_ns, side="right") - 1
        known = (stretch >= 0) & (stretch < len(self._bounds_ns) - 1)
        place = stretch[known], self._of_state[states[known]]
        found = [self._zeros(), self._zeros()]
        np.add.at(found[0], place, values[known])
        np.add.at(found[1], place, 1)
        return found

    def _ended(self, thread: Decoded, ends: dict[int, str]) -> NDArray[np.int64]:
        """How often each operation's mark ended."""
        name_of = np.full(2 * layout.MAX_IDS, -1, np.int64)
        for number, name in ends.items():
            name_of[2 * number + 1] = self._numbers[name]
        rows = thread.turns_of(name_of >= 0)
        found = self._zeros()
        np.add.at(found, (self._of_rows(rows), name_of[thread.rows[1][rows]]), 1)
        return found


def _name(process: Process, number: int) -> str:
    name = process.names.get(number)
    return name.name if name is not None else ""
