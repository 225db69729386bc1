"""What else the steady state of a learning process tells: updates, who waits, the hottest lines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse.stacks import (
    Node,
    Stacks,
    hottest_line,
    is_of_program,
)
from redline.profile.analyse.summary import Summary

# Whose entries are updates: the first that there is. `backpropagation` is entered several times
# in one update, for the backward pass and for the optimizer.
UPDATES = {"learning": "update", "zero_grad": "optimizer step"}
START_UP, IDLE = ("imports", "startup"), ("waiting", "ready")

__all__ = ["UPDATES", "HotLine", "Updates", "Waiting", "count_updates", "hot_lines", "who_waits"]


@dataclass(frozen=True, slots=True)
class Updates:
    """How often the program learned in the steady state."""

    unit: str
    operation: str  # whose entries are counted
    count: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """For whom the learning process waits, and how idle those are that work for it."""

    operation: str  # in which it waits most while another process works, "" if none does
    worker: str  # who works then; "env workers" for all of these
    worker_operation: str
    workers_idle: float  # share of the time that they step envs; nan: there are none


@dataclass(frozen=True, slots=True)
class HotLine:
    """The line of an operation that took longest, as it was sampled."""

    file: str
    line: int
    function: str
    share: float  # of the operation's time, with the native code that the line calls
    caller: str  # "file:line" in the program itself, "" where the line is the program's


def count_updates(
    entries: dict[str, NDArray[np.int64]], begin_ns: int, end_ns: int
) -> Updates | None:
    """Updates that began in a stretch of time; None where nothing counts them.

    Args:
        entries: when each operation began, ns.
        begin_ns: of the stretch.
        end_ns: of it, not included.
    """
    for operation, unit in UPDATES.items():
        times = entries.get(operation, np.empty(0, np.int64))
        count = int(((times >= begin_ns) & (times < end_ns)).sum())
        if count:
            return Updates(unit, operation, count)
    return None


def who_waits(summary: Summary, pid: int, workers_s: dict[int, float]) -> Waiting:
    """For whom a process waits, once they all have started up.

    Args:
        summary: of the session.
        pid: of the process that waits.
        workers_s: {pid: seconds from the first env step to the last} of those that simulate for it.
    """
    rows = [
        row
        for row in summary.waits_for
        if row.waiter_pid == pid
        and row.waiter_operation not in START_UP
        and row.worker_operation not in START_UP
    ]
    longest = max(rows, key=lambda row: row.both_ns, default=None)
    cells = [c for c in summary.cells if c.pid in workers_s and c.operation not in START_UP]
    busy_s = sum(cell.corrected_s for cell in cells if cell.level not in IDLE)
    recorded_s = dict.fromkeys(workers_s, 0.0)
    for cell in cells:
        recorded_s[cell.pid] += cell.raw_s
    # Between two windows of the recording nothing is known of them.
    whole_s = sum(min(stepping_s, recorded_s[each]) for each, stepping_s in workers_s.items())
    idle = max(1.0 - busy_s / whole_s, 0.0) if whole_s > 0 else math.nan
    if longest is None:
        return Waiting("", "", "", idle)
    worker = "the env workers" if longest.worker_pid in workers_s else longest.worker
    return Waiting(longest.waiter_operation, worker, longest.worker_operation, idle)


def hot_lines(stacks: Stacks, begin_ns: int, end_ns: int) -> dict[str, HotLine]:
    """The hottest line of each operation in a stretch of time.

    Args:
        stacks: whose samples know what they were in.
        begin_ns: of the stretch, since the process's base.
        end_ns: of it, not included.
    """
    chosen = (stacks.times_ns >= begin_ns) & (stacks.times_ns < end_ns)
    stacks = replace(
        stacks,
        times_ns=stacks.times_ns[chosen],
        leaves=stacks.leaves[chosen],
        weights_ns=stacks.weights_ns[chosen],
        places=stacks.places[chosen],
    )
    lines: dict[str, HotLine] = {}
    for operation, (stack, own_ns, whole_ns) in hottest_line(stacks).items():
        if whole_ns > 0:
            lines[operation] = _hot_line(stacks, stack, own_ns / whole_ns)
    return lines


def _hot_line(stacks: Stacks, stack: list[Node], share: float) -> HotLine:
    node, code = stack[-1], stacks.codes[stack[-1].code]
    own = [each for each in stack if is_of_program(stacks.codes[each.code].file)]
    caller = ""
    if own and own[-1] is not node:
        caller = f"{stacks.codes[own[-1].code].file}:{own[-1].line}"
    return HotLine(code.file, node.line, code.function, share, caller)
