"""The calibration cycles of a thread: blocks without the probe between blocks with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.cells import sweep_streams
from redline.profile.analyse.decoded import FOREVER, Decoded, Stream, states_at
from redline.profile.reader import Process

NOT_MARKED = 0  # no operation's id

__all__ = ["Block", "Cycle", "CycleSeeker", "Part", "find_cycles"]


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

    parts: defaultdict[str, Part] = field(default_factory=lambda: defaultdict(Part))
    is_paused: bool = False  # the recording was, in between


class CycleSeeker:
    """The calibration cycles of a thread, slice by slice."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._observed: list[bool] = []  # from each marker on
        self._before: list[bool | None] = []  # just before it, any thread's doing; None: unknown
        self._cpu: list[int] = []
        self._blocks: list[_Open] = []  # from each marker on

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
        self._cpu += thread.special_values[special == layout.CODE_CPU].tolist()
        stretches = _Stretches(self._process, thread, [begin_ns, *times, until_ns], rows)
        before = _states_before(times, begin_ns, blind)
        for k, row in enumerate([-1, *rows.tolist()]):
            if row >= 0:
                own = self._observed[-1] if self._observed else None
                self._before.append(before.get(times[k - 1], own))
                self._observed.append(bool(codes[row] == layout.CODE_PROBE_ON))
                self._blocks.append(_Open())
            if self._blocks and not self._settles(len(self._blocks) - 1):
                stretches.add_to(self._blocks[-1], k)

    def _settles(self, place: int) -> bool:
        """Whether this follows a switch: at its first marker the probe goes on, or off."""
        return self._before[place] == (not self._observed[place])

    def found(self) -> list[Cycle]:
        """After the last slice."""
        blocks = self._finished()
        return [
            Cycle(before, off, after)
            for before, off, after in zip(blocks, blocks[1:], blocks[2:], strict=False)
            if before is not None
            and off is not None
            and after is not None
            and before.observed
            and not off.observed
            and after.observed
        ]

    def _finished(self) -> list[Block | None]:
        """The blocks between markers; None where something came in between.

        That is a pause of the recording, or another thread that ended a rest of the probe.
        """
        cpu = self._cpu
        if len(cpu) != len(self._observed):
            return []
        return [
            None
            if block.is_paused or self._before[i + 1] != self._observed[i]
            else Block(self._observed[i], cpu[i + 1] - cpu[i], dict(block.parts))
            for i, block in enumerate(self._blocks[:-1])
            if not self._settles(i)
        ]


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
