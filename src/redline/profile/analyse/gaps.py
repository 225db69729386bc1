"""Name what lies between the operations of a program that marks none of its own.

Most of a training script lies between what the profiler recognizes: indexing of minibatches, the
loss, advantages, loops. And modules are called to act as well as to learn. Which of the two it is
depends on what comes next: a step of the simulator, or a backward pass.

| what | comes next | it is |
|---|---|---|
| a module's call | simulation | inference |
| | backpropagation, zero_grad | forward |
| a gap before the first operation | | startup |
| a gap | simulation | collection |
| | backpropagation, zero_grad | learning |
| a gap right after backpropagation | | learning: target networks, metrics |
| a gap between a step and what is added to replay | | collection |

Where no step of a simulator is known, what was called without gradients is inference and the gap
before it collection. What follows the last operation remains `other`. Only threads that call
modules with gradients on are treated so, as seen in full mode; and none of a program that uses
`profile.operation` itself, which says what it means by the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.decoded import Decoded, State
from redline.profile.reader import Name, Process

LEARNING, COLLECTION, STARTUP = "learning", "collection", "startup"
FORWARD, INFERENCE = "forward", "inference"
# Neither is at work on either: the gap before them is that before what comes next.
PASSING = ("logging", "compile", "imports")
EVALUATION = "evaluation"
KNOWN = (LEARNING, COLLECTION, STARTUP)

# What a state is, in what follows: a gap, an operation that tells nothing, or one that tells.
NOTHING, GAP, PASS, WITHOUT, WITH, REPLAY, LOADING, STEP, UPDATE = range(9)  # gradients
# A framework's own word for its collecting and its update is as good as what happens in them.
KIND = {
    **dict.fromkeys((*PASSING, EVALUATION), PASS),
    INFERENCE: WITHOUT,
    FORWARD: WITH,
    "replay": REPLAY,
    "data loading": LOADING,
    **dict.fromkeys(("simulation", COLLECTION), STEP),
    **dict.fromkeys(("backpropagation", "zero_grad", LEARNING), UPDATE),
}

__all__ = ["COLLECTION", "FORWARD", "LEARNING", "STARTUP", "GapSeeker", "Gaps", "gaps_of"]


@dataclass(frozen=True, slots=True)
class _Edge:
    """What other slices must know of one; kinds as above, NOTHING where it holds none."""

    begin_ns: int
    first: int  # operation that tells something
    decides: int  # the first step or update
    last: int  # operation
    steps: bool  # whether it holds a step


@dataclass(slots=True)
class Gaps:
    """How to name the gaps and the module calls of one thread.

    Attributes:
        process: it belongs to.
        is_named: whether they get names at all.
        first_ns: when it first was in an operation that tells something.
        edges: of its slices, in order.
    """

    process: Process
    is_named: bool
    first_ns: int
    edges: list[_Edge]

    def name(self, thread: Decoded, begin_ns: int) -> Decoded:
        """The thread with the gaps between its operations named, and its module calls.

        Args:
            thread: a slice of it.
            begin_ns: of the slice.
        """
        if not self.is_named:
            return thread
        times, own = thread.stream
        if len(own) == 0:
            return thread
        every = _kinds(self.process, thread)[own]
        # Of the states few differ in kind from the one before: native calls come and go in between.
        runs = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
        named = self._names_of(every[runs], begin_ns)
        begins = (every[runs] == GAP) & (named > 0) & (times[runs] < self.first_ns)
        named[begins] = _ids(self.process)[STARTUP]
        return _renamed(thread, runs, named)

    def _names_of(self, kinds: NDArray[np.int8], begin_ns: int) -> NDArray[np.uint32]:
        """[N] id of the new name of each run of states of one kind, 0: as it is."""
        before, after, decides = self._around(kinds, begin_ns)
        numbers = _ids(self.process)
        named = np.zeros(len(kinds), np.uint32)
        gap, module = (kinds == GAP) & (after != NOTHING), (kinds == WITHOUT) | (kinds == WITH)
        if not any(edge.steps for edge in self.edges):
            decides, module = np.where(after == WITHOUT, STEP, UPDATE), np.zeros_like(module)
            before = np.zeros_like(before)
        named[module & (decides == STEP)] = numbers.get(INFERENCE, 0)
        named[module & (decides == UPDATE)] = numbers[FORWARD]
        undecided = np.where(after == WITH, UPDATE, STEP)
        decides = np.where(decides == NOTHING, undecided, decides)
        collects = ((before == STEP) & (after == REPLAY)) | (after == LOADING)
        learns = (before == UPDATE) | (~collects & (decides == UPDATE))
        named[gap] = numbers[COLLECTION]
        named[gap & learns] = numbers[LEARNING]
        return named

    def _around(
        self, kinds: NDArray[np.int8], begin_ns: int
    ) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.int8]]:
        """[N] kinds of the operation before each state, of the next, and of what decides."""
        begin = attrgetter("begin_ns")
        earlier = self.edges[: bisect_left(self.edges, begin_ns, key=begin)]
        later = self.edges[bisect_right(self.edges, begin_ns, key=begin) :]
        last = next((e.last for e in reversed(earlier) if e.last), NOTHING)
        first = next((e.first for e in later if e.first), NOTHING)
        decider = next((e.decides for e in later if e.decides), NOTHING)
        return (
            _before(kinds, last),
            _after(kinds, kinds > PASS, first),
            _after(kinds, kinds >= STEP, decider),
        )


def _before(kinds: NDArray[np.int8], earlier: int) -> NDArray[np.int8]:
    """[N] the last that tells something, the place itself included."""
    places = np.flatnonzero(kinds > PASS)
    lasting = np.diff(places, prepend=0, append=len(kinds))
    return np.repeat(np.concatenate([np.array([earlier], np.int8), kinds[places]]), lasting)


def _after(kinds: NDArray[np.int8], tells: NDArray[np.bool_], later: int) -> NDArray[np.int8]:
    """[N] the next one that tells something, behind the place itself."""
    places = np.flatnonzero(tells)
    lasting = np.diff(places, prepend=0, append=len(kinds))
    return np.repeat(np.concatenate([kinds[places], np.array([later], np.int8)]), lasting)


def _renamed(thread: Decoded, runs: NDArray[np.int64], named: NDArray[np.uint32]) -> Decoded:
    """The thread with other operations in some places, and states that hold them.

    Args:
        thread: to rename in.
        runs: [R] where in its stream a run begins, of which all states get the same name.
        named: [R] id of each run's name, 0: as it is.
    """
    times, own = thread.stream
    states: list[State | None] = list(thread.states)
    used, place_of = np.unique(named, return_inverse=True)
    lengths = np.diff(runs, append=len(own))
    keys = own * np.uint32(len(used)) + np.repeat(place_of.astype(np.uint32), lengths)
    occurs = np.zeros(len(states) * len(used), bool)
    occurs[keys] = True
    shown = np.arange(len(occurs), dtype=np.uint32) // np.uint32(len(used))
    for key in np.flatnonzero(occurs).tolist():
        state, name = states[key // len(used)], int(used[key % len(used)])
        if state is not None and name:
            shown[key] = len(states)
            states.append(state._replace(operation=name))
    return replace(thread, states=states, stream=(times, shown[keys]))


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
        self._names = {number: _word(name) for number, name in process.names.items()}
        self._can = all(name in _ids(process) for name in (*KNOWN, FORWARD))
        self._used: set[int] = set()
        self._first_ns: int | None = None
        self._edges: list[_Edge] = []

    def add(self, thread: Decoded, begin_ns: int) -> None:
        """The next slice of the thread, and when it begins."""
        if not self._can:
            return
        self._used |= {s.operation for s in thread.states if s is not None and s.operation}
        kinds = _kinds(self._process, thread)[thread.stream[1]]
        tells = np.flatnonzero(kinds > PASS)
        if not len(tells):
            return
        decides = kinds[kinds >= STEP]
        first, last = int(kinds[tells[0]]), int(kinds[tells[-1]])
        decider = int(decides[0]) if len(decides) else NOTHING
        steps = bool((decides == STEP).any())
        self._edges.append(_Edge(begin_ns, first, decider, last, steps))
        if self._first_ns is None:
            self._first_ns = int(thread.stream[0][tells[0]])

    def found(self) -> Gaps:
        """After the last slice."""
        used = {self._names.get(number) for number in self._used}
        is_named = self._can and FORWARD in used and used <= set(KIND)
        return Gaps(self._process, is_named, self._first_ns or 0, self._edges)


def _word(name: Name) -> str | None:
    """Its name; None: a mark that says that the program names its parts itself."""
    is_own = name.name == EVALUATION and name.module != layout.FRAMEWORK
    return None if is_own else name.name


def _ids(process: Process) -> dict[str, int]:
    return {
        name.name: number
        for number, name in sorted(process.names.items(), reverse=True)
        if name.kind == "inferred"
    }


def _kinds(process: Process, thread: Decoded) -> NDArray[np.int8]:
    """[S] what each state is, in the words above."""
    names = process.names
    found: list[int] = []
    for state in thread.states:
        if state is None:
            found.append(NOTHING)
        elif state.operation == 0:
            found.append(GAP)
        else:
            name = names.get(state.operation)
            kind = KIND.get(name.name, PASS) if name is not None else PASS
            # An operation that the program marked itself is what it says.
            is_own = kind in (WITHOUT, WITH) and name is not None and name.kind != "inferred"
            found.append(PASS if is_own else kind)
    return np.array(found, np.int8)
