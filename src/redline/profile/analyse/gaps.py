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

from dataclasses import replace

import numpy as np

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

__all__ = ["COLLECTION", "FORWARD", "LEARNING", "STARTUP", "named_gaps"]


def named_gaps(process: Process, thread: Decoded) -> Decoded:
    """The thread with the gaps between its operations named.

    Args:
        process: it belongs to.
        thread: as its events say.
    """
    names = {number: name.name for number, name in process.names.items()}
    numbers = {
        name.name: number
        for number, name in sorted(process.names.items(), reverse=True)
        if name.kind == "inferred"
    }
    known = [LEARNING, COLLECTION, STARTUP, FORWARD]
    if not all(name in numbers for name in known) or _marks_itself(names, thread):
        return thread
    if not _calls_forward(names, thread):
        return thread
    into = {name: i for i, name in enumerate(known[:3])}
    follows = np.array(
        [-1 if s is None else into.get(_kind_of(names, s), -1) for s in thread.states], np.int8
    )
    is_gap = np.array([s is not None and s.operation == 0 for s in thread.states])
    own = thread.stream[1].copy()
    kinds = follows[own]
    seen = np.flatnonzero(kinds >= 0)  # begins of what gaps are named after
    gaps = np.flatnonzero(is_gap[own])
    gaps = gaps[gaps < seen[-1]]
    after = kinds[seen[np.searchsorted(seen, gaps)]]
    after[gaps < seen[0]] = into[STARTUP]
    states: list[State | None] = list(thread.states)
    renamed = np.zeros((len(states), 3), np.uint32)
    for number, state in enumerate(thread.states):
        if state is not None and state.operation == 0:
            for kind in range(3):
                renamed[number, kind] = len(states)
                states.append(State(numbers[known[kind]], state.marked, state.level))
    own[gaps] = renamed[own[gaps], after]
    return replace(thread, states=states, stream=(thread.stream[0], own))


def _kind_of(names: dict[int, str], state: State) -> str:
    return FOLLOWED_BY.get(names.get(state.operation, ""), "")


def _marks_itself(names: dict[int, str], thread: Decoded) -> bool:
    usual = {*FOLLOWED_BY, *PASSING}
    used = {s.operation for s in thread.states if s is not None and s.operation}
    return any(names.get(number) not in usual for number in used)


def _calls_forward(names: dict[int, str], thread: Decoded) -> bool:
    return any(s is not None and names.get(s.operation) == FORWARD for s in thread.states)
