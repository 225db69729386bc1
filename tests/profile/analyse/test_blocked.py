"""Threads that block while the probe is off: by hand, and in a program."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from redline.profile import layout
from redline.profile.analyse.cells import stretches
from redline.profile.analyse.cycles import Block, Cycle, CycleSeeker, Room, _states_before
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.timeline import build_timeline
from tests.profile.streams import INFERENCE, SIMULATION, begin, cells, end, process

MS = 1_000_000
Events = list[tuple[int, int]]


def shard_events(*rows: tuple[int, int, int | None]) -> Events:
    """(time in ms, code, CPU time in ms or None) as rows whose deltas are what is stored."""
    found: Events = []
    offset = 0  # payload rows move all later times, as only differences are stored
    for at_ms, code, cpu_ms in rows:
        if cpu_ms is not None:
            last = found[-1][0] if found else 0
            found.append((last + cpu_ms * MS, layout.CODE_CPU))
            offset += cpu_ms * MS
        found.append((at_ms * MS + offset, code))
    return found


ON, OFF, WINDOW = layout.CODE_PROBE_ON, layout.CODE_PROBE_OFF, layout.CODE_WINDOW_ON


def test_a_long_silence_without_cpu_is_a_wait() -> None:
    """The block 100..900 ms used 10 ms of CPU: 150..900, in inference, the thread was blocked.

    The other 50 of the block are split like the observed simulation, which is all Python.
    """
    found = cells(
        shard_events(
            (0, WINDOW, None),
            (0, begin(SIMULATION), None),
            (100, OFF, 100),
            (150, begin(INFERENCE), None),
            (900, ON, 110),
            (900, end(INFERENCE), None),
            (900, end(SIMULATION), None),
        ),
        end_ns=1000 * MS,
    )
    assert found == {
        ("", "simulation", "python"): 150 * MS,
        ("", "inference", "waiting"): 750 * MS,
        ("", "other", "python"): 100 * MS,
    }


def test_a_long_silence_of_computing_is_none() -> None:
    found = cells(
        shard_events(
            (0, WINDOW, None),
            (0, begin(SIMULATION), None),
            (100, OFF, 100),
            (900, ON, 600),
            (900, end(SIMULATION), None),
        ),
        end_ns=1000 * MS,
    )
    assert found == {
        ("", "simulation", "python"): 900 * MS,
        ("", "other", "python"): 100 * MS,
    }


FIRST = [(0, WINDOW, None), (100, OFF, 100)]
SECOND = [
    (0, begin(INFERENCE), None),
    (400, ON, 105),  # the first one's CPU time
    (900, end(INFERENCE), None),
    (900, layout.CODE_THREAD_END, None),
]


def test_who_is_blocked_lets_another_thread_lead() -> None:
    """The first thread blocks from 100 to 950; the second works to 900, and ends the block at 400.

    What the first one does after the block is not seen before its next event.
    """
    first = [*FIRST, (950, begin(SIMULATION), None)]
    assert cells(shard_events(*first), shard_events(*SECOND), end_ns=1000 * MS) == {
        ("", "other", "python"): 100 * MS,
        ("", "inference", "python"): 800 * MS,
        ("", "other", "waiting"): 50 * MS,
        ("", "simulation", "python"): 50 * MS,
    }


def test_who_is_never_seen_again_waits_as_long_as_others_are_seen() -> None:
    assert cells(shard_events(*FIRST), shard_events(*SECOND), end_ns=1000 * MS) == {
        ("", "other", "python"): 200 * MS,
        ("", "inference", "python"): 800 * MS,
    }


PROGRAM = """
import threading, time
from redline import profile

def work(name, seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        with profile.operation(name):
            sum(range(500))

# Until the probe is off: from now on no mark of this thread ends the block.
from redline.profile import _native
while _native.get_active() != 1:
    work("simulation", 0.001)
thread = threading.Thread(target=work, args=("learning", 2.0))
thread.start()
thread.join()
"""


def test_a_block_that_begins_before_a_long_wait_is_ended_by_another_thread(profiled: Any) -> None:
    profiled.run(PROGRAM)
    summary = summarize(profiled.session)
    times: dict[str, float] = defaultdict(float)
    for cell in summary.cells:
        times[cell.operation] += cell.raw_s
    # The block lasts 0.25 s, and on a busy machine until the other thread has a core again. Without
    # that thread it would last all of these 2 s, and none of them would be seen.
    assert 0.5 < times["learning"] < 2.5


def test_a_block_in_which_the_program_ends_its_days_waiting(profiled: Any) -> None:
    profiled.run(PROGRAM.partition("thread = ")[0] + "time.sleep(0.6)\n")
    times = {(c.operation, c.level): c.raw_s for c in summarize(profiled.session).cells}
    # On a busy machine the end comes later than the 0.6 s, and until then it waits.
    assert 0.55 < times["other", "waiting"] < 2.0


def cycles_of(*threads: Events) -> list[Cycle]:
    """Of the first thread."""
    made = process(*threads, end_ns=1000 * MS)
    timeline = build_timeline(made)
    seeker = CycleSeeker(made)
    seeker.add(timeline.threads[0], timeline.begin_ns, timeline.until_ns, timeline.blind)
    return seeker.found()


def test_a_rest_that_another_thread_ends_is_no_calibration_block() -> None:
    """The first rest lasts from 60 to 400, the second from 460 to 500: between the two the probe
    was on. The first thread's own markers alone look like a settled block from 460 on."""
    main = shard_events(
        (0, WINDOW, None),
        (0, begin(SIMULATION), None),
        (10, ON, 10),
        (50, ON, 50),
        (60, OFF, 60),
        (460, OFF, 460),
        (500, ON, 500),
        (520, ON, 520),
        (560, ON, 560),
    )
    other = shard_events((400, ON, 400))
    assert cycles_of(main, other) == []


def test_a_block_that_another_thread_ends_is_none() -> None:
    """From 60 on the thread was blocked; at 400 another one ended the block without the probe."""
    main = shard_events(
        (0, WINDOW, None),
        (10, ON, 10),
        (50, OFF, 50),
        (60, OFF, 60),
        (520, ON, 520),
        (560, ON, 560),
    )
    assert cycles_of(main, shard_events((400, ON, 60))) == []


def test_a_cycle_is_found_with_other_threads_beside_it() -> None:
    main = shard_events(
        (0, WINDOW, None),
        (0, begin(SIMULATION), None),
        (10, ON, 10),
        (50, OFF, 50),
        (60, OFF, 60),
        (100, ON, 100),
        (110, ON, 110),
        (150, ON, 150),
    )
    found = cycles_of(main, shard_events((300, ON, 300)))
    assert [(c.before.cpu_ns, c.off.cpu_ns, c.after.cpu_ns) for c in found] == [(40 * MS,) * 3]
    assert found[0].off.parts["simulation"].ns == 40 * MS


def test_the_rests_of_an_import_take_no_stretches_from_later_blocks() -> None:
    """40 rests of 45 ms with 5 ms between them are like one block: the 30 blocks after them, 100 ms
    apart, keep a stretch each, parted halfway between one's end and the next one's begin."""
    rests = [(1000 + 50 * i, 1045 + 50 * i) for i in range(40)]
    blocks = [(3100 + 140 * i, 3140 + 140 * i) for i in range(30)]
    rows = [
        (at, code, at)
        for block in rests + blocks
        for at, code in zip(block, (OFF, ON), strict=True)
    ]
    timeline = build_timeline(process(shard_events((0, WINDOW, None), *rows), end_ns=8000 * MS))
    edges = [ns // MS for ns in stretches(timeline).tolist()]
    after_rests, halfway = (2995 + 3100) // 2, [3140 + 50 + 140 * i for i in range(29)]
    assert edges == [0, 900, after_rests, *halfway, 3140 + 140 * 29 + 100, 8000]


def test_the_state_before_a_marker_is_unknown_at_a_slices_begin_and_of_two_at_once() -> None:
    """Observed until 10, not until 50, and observed again: on just before 10 and before 60.

    Of the two markers at 50 the stream has one. What a slice begins with is told by the one before.
    """
    blind = (np.array([10, 50]), np.array([1, 0]))
    assert _states_before([10, 50, 50, 60], 5, blind) == {10: True, 60: True}
    assert _states_before([10, 20], 10, blind) == {20: False}
    assert _states_before([10], 5, None) == {}


def test_threads_share_the_room_for_cycles() -> None:
    """Five each of two threads in turn, room for 8: the ninth leaves numbers 0, 2, 4, 6 and 8.

    These are all the first's.
    """
    room = Room(8)
    one, other = (CycleSeeker(process([]), room) for _ in range(2))
    cycles = [Cycle(*(Block(on, i, {}) for on in (True, False, True))) for i in range(10)]
    for i, cycle in enumerate(cycles):
        room.add((one, other)[i % 2], cycle)
    assert [cycle.off.cpu_ns for cycle in one.found()] == [0, 2, 4, 6, 8]
    assert other.found() == []


def test_of_many_cycles_every_second_one_is_kept() -> None:
    """Room for 4: the fifth leaves numbers 0, 2, 4 of them; then come 6 and 8, and 0, 4, 8 stay.

    Number i has a middle block of 10 + i ms.
    """
    rows: list[tuple[int, int, int | None]] = [(0, WINDOW, None)]
    at = 10
    for i in range(10):
        for code, lasts in ((ON, 10), (OFF, 1), (OFF, 10 + i), (ON, 1), (ON, 10), (ON, 20)):
            rows.append((at, code, at))
            at += lasts
    timeline = build_timeline(process(shard_events(*rows)))
    seeker = CycleSeeker(timeline.process, Room(4))
    seeker.add(timeline.threads[0], timeline.begin_ns, timeline.until_ns, timeline.blind)
    assert [cycle.off.cpu_ns // MS for cycle in seeker.found()] == [10, 14, 18]
