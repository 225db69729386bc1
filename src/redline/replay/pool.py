"""Slots for what is kept besides the ring: true last observations, frames of a first stack.

Slots are handed out per row and come back when that row is needed no more. The last ones
freed are used first, so that no more memory is touched than is needed at once.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from redline.data import Array

_LANES = ("last", "first")


class SlotPool:
    """Slots first .. first + capacity - 1, of which more are made when too few are free.

    Two lanes take from it, each in the order of rows: "last" for last observations of
    episodes, "first" for the older frames of first stacks, which are needed for longer.

    Args:
        first: number of the first slot.
        capacity: how many there are to begin with.
    """

    def __init__(self, first: int, capacity: int) -> None:
        self.first = first
        self._initial_capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Free everything; the capacity is that of the beginning."""
        self.capacity = self._initial_capacity
        self._free = np.arange(self.first + self.capacity - 1, self.first - 1, -1)
        self._taken: dict[str, deque[tuple[Array, Array]]] = {lane: deque() for lane in _LANES}

    @property
    def num_taken(self) -> int:
        """Slots in use."""
        return self.capacity - len(self._free)

    def release_before(self, row: int, lane: str) -> None:
        """Free the slots of rows below `row` in a lane."""
        taken = self._taken[lane]
        freed: list[Array] = []
        while taken and taken[0][0][0] < row:
            rows, slots = taken.popleft()
            count = int(np.searchsorted(rows, row))
            freed.append(slots[:count])
            if count < len(rows):
                taken.appendleft((rows[count:], slots[count:]))
        if freed:
            self._free = np.concatenate([self._free, *freed])

    def missing(self, count: int) -> int:
        """How many more slots are needed before `count` can be taken."""
        return max(count - len(self._free), 0)

    def extend(self, count: int) -> None:
        """Add `count` slots."""
        stop = self.first + self.capacity
        self._free = np.concatenate([np.arange(stop + count - 1, stop - 1, -1), self._free])
        self.capacity += count

    def take(self, rows: Array, lane: str) -> Array:
        """One slot for each entry of `rows`.

        Args:
            rows: [n] int64 ascending; none below those of earlier calls for this lane.
            lane: "last" or "first".

        Returns:
            [n] int64 slots.
        """
        split = len(self._free) - len(rows)
        slots = self._free[split:][::-1].copy()
        self._free = self._free[:split]
        if len(rows):
            self._taken[lane].append((rows.astype(np.int64), slots))
        return slots

    def state_arrays(self) -> dict[str, Array]:
        """All there is to know, as arrays."""
        empty = np.zeros(0, dtype=np.int64)
        state = {"free": self._free}
        for lane in _LANES:
            taken = self._taken[lane]
            state[f"{lane}_rows"] = np.concatenate([empty, *(rows for rows, _ in taken)])
            state[f"{lane}_slots"] = np.concatenate([empty, *(slots for _, slots in taken)])
        return state

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        """The inverse of `state_arrays`."""
        self._free = state["free"]
        self.capacity = len(self._free)
        for lane in _LANES:
            rows, slots = state[f"{lane}_rows"], state[f"{lane}_slots"]
            self._taken[lane] = deque([(rows, slots)] if len(rows) else [])
            self.capacity += len(rows)
