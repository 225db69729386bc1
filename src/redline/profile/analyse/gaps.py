"""Name the Python code between the operations of a program that marks none of its own.

Most of a training script lies between what the profiler recognizes: indexing of minibatches, the
loss, advantages, loops. Such a gap is part of what follows it:

| what follows | the gap is |
|---|---|
| forward, backpropagation, zero_grad | learning |
| simulation, inference, replay, data loading | collection |

and before the first of all these it is `startup`. What follows the last remains `other`. Only
threads that call modules with gradients on are treated so, as seen in full mode; and none of a
program that uses `profile.operation` itself, which says what it means by the rest.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse.decoded import Decoded, State
from redline.profile.reader import Process

LEARNING, COLLECTION, STARTUP = "learning", "collection", "startup"
FORWARD = "forward"
FOLLOWED_BY = {
    **dict.fromkeys((FORWARD, "backpropagation", "zero_grad", LEARNING), LEARNING),
    **dict.fromkeys(("simulation", "inference", "replay", "data loading", COLLECTION), COLLECTION),
}
# Neither is at work on either: the gap before them is that before what comes next.
PASSING = ("logging", "compile", "imports")
KNOWN = (LEARNING, COLLECTION, STARTUP)
STARTUP_KIND = 2

__all__ = ["COLLECTION", "FORWARD", "LEARNING", "STARTUP", "GapSeeker", "Gaps", "gaps_of"]


@dataclass(slots=True)
class Gaps:
    """How to name the gaps of one thread; `first_after` and `first_ns` tell of the other slices.

    Attributes:
        process: it belongs to.
        is_named: whether they get names at all.
        first_ns: when it first was in an operation that gaps are named after.
        follows: per slice begin that has any, its first such operation.
    """

    process: Process
    is_named: bool
    first_ns: int
    follows: list[tuple[int, int]]  # (begin of a slice, kind) in rising order

    def name(self, thread: Decoded, begin_ns: int) -> Decoded:
        """The thread with the gaps between its operations named.

        Args:
            thread: a slice of it.
            begin_ns: of the slice.
        """
        if not self.is_named:
            return thread
        numbers = _ids(self.process)
        times, own = thread.stream[0], thread.stream[1].copy()
        kinds = _kinds(self.process, thread)[own]
        seen = np.flatnonzero(kinds >= 0)  # begins of what gaps are named after
        is_gap = np.array([s is not None and s.operation == 0 for s in thread.states])
        gaps = np.flatnonzero(is_gap[own])
        place = bisect.bisect_right(self.follows, (begin_ns, len(KNOWN)))
        later = self.follows[place][1] if place < len(self.follows) else -1
        after = np.append(kinds[seen], later)[np.searchsorted(seen, gaps)]
        after[(times[gaps] < self.first_ns) & (after >= 0)] = STARTUP_KIND
        gaps, after = gaps[after >= 0], after[after >= 0]
        states: list[State | None] = list(thread.states)
        renamed = np.zeros((len(states), 3), np.uint32)
        for number, state in enumerate(thread.states):
            if state is not None and state.operation == 0:
                for kind in range(3):
                    renamed[number, kind] = len(states)
                    states.append(State(numbers[KNOWN[kind]], state.marked, state.level))
        own[gaps] = renamed[own[gaps], after]
        return replace(thread, states=states, stream=(times, own))


def gaps_of(process: Process, slices: Iterable[Decoded]) -> Gaps:
    """How the gaps of a thread are named.

    Args:
        process: it belongs to.
        slices: of the thread, in order.
    """
    seeker = GapSeeker(process)
    for place, each in enumerate(slices):
        seeker.add(each, place)
    return seeker.found()


class GapSeeker:
    """Finds out how the gaps of a thread are named, slice by slice."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names = {number: name.name for number, name in process.names.items()}
        self._can = all(name in _ids(process) for name in (*KNOWN, FORWARD))
        self._used: set[int] = set()
        self._first_ns: int | None = None
        self._follows: list[tuple[int, int]] = []

    def add(self, thread: Decoded, begin_ns: int) -> None:
        """The next slice of the thread, and when it begins."""
        if not self._can:
            return
        self._used |= {s.operation for s in thread.states if s is not None and s.operation}
        kinds = _kinds(self._process, thread)[thread.stream[1]]
        at = int((kinds >= 0).argmax()) if len(kinds) else 0
        if len(kinds) and kinds[at] >= 0:
            self._follows.append((begin_ns, int(kinds[at])))
            if self._first_ns is None:
                self._first_ns = int(thread.stream[0][at])

    def found(self) -> Gaps:
        """After the last slice."""
        used = {self._names.get(number) for number in self._used}
        is_named = self._can and FORWARD in used and used <= {*FOLLOWED_BY, *PASSING}
        return Gaps(self._process, is_named, self._first_ns or 0, self._follows)


def _ids(process: Process) -> dict[str, int]:
    return {
        name.name: number
        for number, name in sorted(process.names.items(), reverse=True)
        if name.kind == "inferred"
    }


def _kinds(process: Process, thread: Decoded) -> NDArray[np.int8]:
    """[S] place in `KNOWN` of what a gap before each state is, -1 where that is not said."""
    names = process.names
    into = {name: i for i, name in enumerate(KNOWN)}
    found = [
        -1
        if s is None or s.operation not in names
        else into.get(FOLLOWED_BY.get(names[s.operation].name, ""), -1)
        for s in thread.states
    ]
    return np.array(found, np.int8)
