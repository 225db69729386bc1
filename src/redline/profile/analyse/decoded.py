"""A shard decoded, whole or piece by piece: what its thread was doing, as states over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redline.profile.read.extension import sweep_extension
from redline.profile.reader import Process, Rows, Shard, Source

Stream = tuple[NDArray[np.int64], NDArray[np.uint32]]

FOREVER = (1 << 63) - 1
NO_ROWS: Rows = np.empty(0, np.uint32), np.empty(0, np.uint16)

__all__ = [
    "FOREVER",
    "Cursor",
    "Decoded",
    "RowClock",
    "State",
    "Stream",
    "decode",
    "row_times",
    "states_at",
]


class State(NamedTuple):
    """What a thread is doing; operations by name id, 0 for none."""

    operation: int  # the innermost operation
    marked: int  # the innermost that was not inferred from Python code, and so is always seen
    level: int
    under: int | None = None  # the level that events say, where another one was laid over it

    def at(self, level: int) -> State:
        """The same with another level laid over it."""
        return self._replace(level=level, under=self.said)

    @property
    def said(self) -> int:
        """The level that events say."""
        return self.level if self.under is None else self.under


class RowClock:
    """The times of some rows, counted once they are asked for.

    Args:
        rows: of a shard, or a piece of it.
        since_ns: the time that the first delta counts from.
    """

    def __init__(self, rows: Rows, since_ns: int = 0) -> None:
        self.rows, self._since_ns = rows, since_ns
        self._times_ns: NDArray[np.int64] | None = None

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """[N] ns since the process's base; payloads have the time of the row before."""
        if self._times_ns is None:
            self._times_ns = row_times(self.rows, self._since_ns)
        return self._times_ns


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded shard, or a slice of one.

    The stream of a slice begins with the state that lasts into it, if the thread is there.
    """

    index: int
    stream: Stream  # of indices into `states`, 0: the thread is not there
    states: list[State | None]
    special_times: NDArray[np.int64]  # [M] ns
    special_codes: NDArray[np.uint16]  # [M] CODE_*, or 2 * id + is_end of phases
    special_values: NDArray[np.int64]  # [M] of payloads
    inclusive_ns: NDArray[np.int64]  # [largest id + 1] time inside each name that ended in it
    counts: NDArray[np.int64]  # [largest id + 1] begins of each name
    last_ns: int
    clock: RowClock = field(default_factory=lambda: RowClock(NO_ROWS))  # of its rows
    turns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[T] of its rows those at which an operation begins or ends: few, as calls are most."""
    before: State | None = None  # what the thread did just before a slice; None: it was not there

    def last_state(self) -> State | None:
        """At its end."""
        numbers = self.stream[1]
        return self.states[int(numbers[-1])] if len(numbers) else self.before

    @property
    def rows(self) -> Rows:
        """As recorded."""
        return self.clock.rows

    def turns_of(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[N] rows with some codes, which begin or end operations.

        Args:
            chosen: [2 * MAX_IDS] whether each code is one of them.
        """
        return self.turns[chosen[self.rows[1][self.turns]]]

    def times_of(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ns since the process's base of some rows; payloads have the time of the row before."""
        return self.clock.times_ns[chosen]


def states_at(stream: Stream, times: NDArray[np.int64], before: int = 0) -> NDArray[np.uint32]:
    """[N] the states that hold at some times.

    Args:
        stream: of M states.
        times: [N] ns, on the stream's clock.
        before: what holds ahead of its first time.
    """
    at = np.searchsorted(stream[0], times, side="right")
    if len(stream[1]) == 0:
        return np.full(len(at), before, np.uint32)
    # The stream itself is not copied: it may be long, and the times few.
    found = stream[1][np.maximum(at, 1) - 1]
    found[at == 0] = before
    return found


def row_times(rows: Rows, since_ns: int = 0) -> NDArray[np.int64]:
    """[N] ns since the process's base of each row; payload rows have the time before them.

    Args:
        rows: of a shard, or a piece of it.
        since_ns: the time that the first delta counts from.

    Raises:
        ProfileError: if the C extension was not built.
    """
    return np.frombuffer(sweep_extension().row_times(*rows, since_ns), np.int64)


class Cursor:
    """Decodes a shard from one time to the next.

    Args:
        process: it belongs to.
        source: the shard.
        begins_ns: [P] when each of its pieces begins; None: it is decoded at once.
    """

    def __init__(
        self, process: Process, source: Source, begins_ns: NDArray[np.int64] | None = None
    ) -> None:
        self.index = source.index
        self._process, self._source = process, source
        self._pieces = source.pieces()
        self._begins: list[int] = [] if begins_ns is None else begins_ns.tolist()
        self._read = 0 if begins_ns is not None else -1
        self._left = NO_ROWS
        self._carry = b""
        self._last_ns = 0
        self._state: State | None = None

    def is_idle(self, until_ns: int) -> bool:
        """Whether the thread is not there before a time, and has no rows."""
        begun = self._read != 0 or not self._begins or self._begins[0] < until_ns
        return not begun or self._is_over()

    def _is_over(self) -> bool:
        read_all = self._read == len(self._begins)
        return read_all and len(self._left[1]) == 0 and self._state is None

    def advance(self, from_ns: int, until_ns: int) -> Decoded:
        """What the thread did between two times; the first is where the last call ended.

        Raises:
            ProfileError: if the C extension was not built.
        """
        deltas, codes = self._gather(until_ns)
        since_ns, before = self._last_ns, self._state
        raw = sweep_extension().decode(
            deltas, codes, *self._process.name_tables, self._carry, from_ns, until_ns
        )
        done = raw["rows"]
        self._left = deltas[done:].copy(), codes[done:].copy()
        self._carry, self._last_ns = raw["carry"], raw["last_ns"]
        keys = np.frombuffer(raw["keys"], np.uint64).tolist()
        states = [State(key >> 24 & 0xFFFF, key >> 8 & 0xFFFF, key & 0xFF) for key in keys]
        found = Decoded(
            index=self.index,
            stream=(np.frombuffer(raw["times"], np.int64), np.frombuffer(raw["states"], np.uint32)),
            states=[None, *states],
            special_times=np.frombuffer(raw["special_times"], np.int64),
            special_codes=np.frombuffer(raw["special_codes"], np.uint16),
            special_values=np.frombuffer(raw["special_values"], np.int64),
            inclusive_ns=np.frombuffer(raw["inclusive_ns"], np.int64),
            counts=np.frombuffer(raw["counts"], np.int64),
            last_ns=raw["last_ns"],
            clock=RowClock((deltas[:done], codes[:done]), since_ns),
            turns=np.flatnonzero(self._process.operation_codes[codes[:done]]),
            before=before,
        )
        self._state = found.last_state()
        return found

    def _gather(self, until_ns: int) -> Rows:
        """What was left, and the pieces that begin before a time."""
        parts = [self._left]
        if self._read < 0:
            parts += self._pieces
            self._read = 0
        while self._read < len(self._begins) and self._begins[self._read] < until_ns:
            self._read += 1
            parts.append(next(self._pieces))
        return np.concatenate([d for d, _ in parts]), np.concatenate([c for _, c in parts])


def decode(process: Process, shard: Shard) -> Decoded:
    """Follow the begins and ends of a whole shard.

    Raises:
        ProfileError: if the C extension was not built.
    """
    return Cursor(process, Source(shard)).advance(0, FOREVER)
