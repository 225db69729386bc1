"""Processes against each other, and crossings into native code: exact, by hand and by counting."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile import layout, levels
from redline.profile.analyse.decoded import FOREVER
from redline.profile.analyse.processes import WaitSums, busy_together, session_span, waits
from redline.profile.analyse.timeline import Timeline, build_timeline
from redline.profile.analyse.transitions import transitions
from tests.profile.streams import (
    EVENTS,
    INFERENCE,
    INFERRED,
    SIMULATION,
    SLEEP,
    TORCH,
    begin,
    end,
    process,
)

WINDOW = (0, layout.CODE_WINDOW_ON)


def timeline(events: Any, *, pid: int, base_ns: int, end_ns: int) -> Timeline:
    made = process(events, end_ns=base_ns + end_ns)
    made.start.update(pid=pid, base_ns=base_ns)
    made.name = f"p{pid}"
    return build_timeline(made)


def two_processes() -> list[Timeline]:
    """A learner, recorded 0..100, waits 20..70 in simulation; a worker, 30..90, sleeps 50..60.

    time    0    20   30   50   60   70   90  100
    learner busy wait wait wait wait busy busy
    worker            busy wait busy busy
    busy    1    0    1    0    1    2    1
    """
    learner = timeline(
        [
            WINDOW,
            (10, begin(SIMULATION)),
            (20, begin(SLEEP)),
            (70, end(SLEEP)),
            (80, end(SIMULATION)),
        ],
        pid=1,
        base_ns=0,
        end_ns=100,
    )
    worker = timeline(
        [
            WINDOW,
            (10, begin(INFERENCE)),
            (20, begin(SLEEP)),
            (30, end(SLEEP)),
            (40, end(INFERENCE)),
        ],
        pid=2,
        base_ns=30,
        end_ns=60,
    )
    return [learner, worker]


def test_busy_together_by_hand() -> None:
    assert busy_together(two_processes()) == {0: 10 + 10, 1: 20 + 20 + 10 + 10, 2: 20}


def test_waits_by_hand() -> None:
    """The learner waits 50 ns; of these the worker works 30..40 outside inference, 40..50 in it
    and 60..70 in it; 20..30 and 50..60 nobody does. The worker waits while nobody works."""
    totals, pairs = waits(two_processes())
    assert [(w.process, w.operation, w.waiting_ns, w.nobody_busy_ns) for w in totals] == [
        ("p1", "simulation", 50, 20),
        ("p2", "inference", 10, 10),
    ]
    assert {
        (p.waiter, p.waiter_operation, p.worker, p.worker_operation): p.both_ns for p in pairs
    } == {
        ("p1", "simulation", "p2", "other"): 10,
        ("p1", "simulation", "p2", "inference"): 20,
    }


def beside(timelines: list[Timeline]) -> dict[tuple[int, int], int]:
    sums = WaitSums([each.process for each in timelines], *session_span(timelines))
    sums.add(list(range(len(timelines))), timelines, FOREVER)
    return sums.beside()


def test_work_while_another_is_there_by_hand() -> None:
    """The worker is there 30..90; of that the learner works 70..90. The worker works 30..50 and
    60..90, the learner there all the time."""
    assert beside(two_processes()) == {(0, 1): 20, (1, 0): 20 + 30}


def test_no_process_is_no_time() -> None:
    assert busy_together([]) == {}
    assert waits([]) == ([], [])


PROCESSES = st.lists(st.tuples(EVENTS, st.integers(0, 50), st.integers(0, 400)), max_size=4)


@settings(max_examples=100, deadline=None)
@given(PROCESSES)
def test_the_tables_equal_counting_every_nanosecond(drawn: Any) -> None:
    """Sums are the session's span and each process's waiting time, whatever the events."""
    timelines = []
    for pid, (steps, base, length) in enumerate(drawn, 1):
        times = np.cumsum([dt for dt, _ in steps]).astype(int).tolist()
        events = [WINDOW, *zip(times, (code for _, code in steps), strict=True)]
        timelines.append(timeline(events, pid=pid, base_ns=base, end_ns=length))
    found = busy_together(timelines)
    first = min((t.process.base_ns for t in timelines), default=0)
    last = max((t.process.base_ns + t.end_ns for t in timelines), default=0)
    assert sum(found.values()) == last - first
    states = [[waiting_or_busy(t, now) for now in range(first, last)] for t in timelines]
    counted: dict[int, int] = {}
    for now in range(last - first):
        k = sum(s[now] == "busy" for s in states)
        counted[k] = counted.get(k, 0) + 1
    assert found == counted
    totals, pairs = waits(timelines)
    for each, mine in zip(timelines, states, strict=True):
        own = [w for w in totals if w.pid == each.process.pid]
        assert sum(w.waiting_ns for w in own) == mine.count("waiting")
        for other, theirs in zip(timelines, states, strict=True):
            both = sum(
                p.both_ns
                for p in pairs
                if (p.waiter_pid, p.worker_pid) == (each.process.pid, other.process.pid)
            )
            expected = sum(
                a == "waiting" and b == "busy" for a, b in zip(mine, theirs, strict=True)
            )
            assert both == (0 if each is other else expected)
    together = beside(timelines)
    for i, mine in enumerate(states):
        for j, theirs in enumerate(states):
            expected = sum(a == "busy" and b != "absent" for a, b in zip(mine, theirs, strict=True))
            assert together.get((i, j), 0) == (0 if i == j else expected)


def waiting_or_busy(made: Timeline, now: int) -> str:
    at = now - made.process.base_ns
    if not 0 <= at < made.end_ns:
        return "absent"
    state = [0, *made.lead[1][made.lead[0] <= at].tolist()][-1]
    return "waiting" if made.states[state].level == levels.WAITING else "busy"


def test_transitions_by_hand() -> None:
    """Two steps: three calls of torch in inference, one sleep in other; Python runs within one
    of the calls and calls torch again from there, which is one more crossing."""
    made = process(
        [
            WINDOW,
            (10, begin(INFERENCE)),
            (20, begin(TORCH)),
            (30, end(TORCH)),
            (32, begin(TORCH)),
            (35, begin(TORCH)),  # inside native code: crosses nothing
            (38, end(TORCH)),
            (40, end(TORCH)),
            (45, end(INFERENCE)),
            (46, layout.CODE_STEP),
            (50, begin(INFERENCE)),
            (51, begin(INFERRED)),
            (52, begin(TORCH)),
            (53, end(TORCH)),
            (54, end(INFERRED)),
            (60, end(INFERENCE)),
            (61, begin(SLEEP)),
            (70, end(SLEEP)),
            (71, layout.CODE_STEP),
        ]
    )
    rows = {(r.operation, r.level): r for r in transitions(build_timeline(made))}
    # INFERENCE and INFERRED are both called "inference": 2 + 1 begins, 2 + 1 crossings.
    assert {key: (r.count, r.steps, r.entries) for key, r in rows.items()} == {
        ("inference", "backend"): (3, 2, 3),
        ("other", "waiting"): (1, 2, 0),
    }
    assert rows["inference", "backend"].per_step == 1.5
    assert rows["inference", "backend"].per_entry == 1.0
    assert rows["other", "waiting"].per_entry is None


def test_transitions_leave_out_what_was_not_observed() -> None:
    """Of two steps one lies in a calibration block, in which no call was seen."""
    made = process(
        [
            WINDOW,
            (10, begin(SIMULATION)),
            (12, begin(TORCH)),
            (14, end(TORCH)),
            (16, end(SIMULATION)),
            (18, layout.CODE_STEP),
            (20, layout.CODE_PROBE_OFF),
            (22, begin(SIMULATION)),
            (24, end(SIMULATION)),
            (26, layout.CODE_STEP),
            (40, layout.CODE_PROBE_ON),
        ]
    )
    (row,) = transitions(build_timeline(made))
    assert (row.count, row.steps, row.entries) == (1, 1, 1)


def test_transitions_of_a_real_program(profiled: Any) -> None:
    profiled.run(
        """
import mujoco, torch
from redline import profile
for _ in range(10):
    with profile.operation("inference"):
        for _ in range(7):
            torch.spin(1000)
    with profile.operation("simulation"):
        for _ in range(3):
            mujoco.spin(1000)
    profile.step()
""",
        calibrate=False,
    )
    from redline.profile.reader import open_session

    made = build_timeline(open_session(profiled.session).processes[0])
    rows = {(r.operation, r.level): r for r in transitions(made)}
    assert rows["inference", "backend"].per_step == 7
    assert rows["simulation", "simulator"].per_entry == 3
