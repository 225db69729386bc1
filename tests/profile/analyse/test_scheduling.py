"""What threads did between looks of the scheduler: against plain counting, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.profile import layout, levels
from redline.profile.analyse import scheduling
from redline.profile.analyse.decoded import FOREVER, Decoded, State
from redline.profile.analyse.scheduling import (
    Off,
    Settled,
    Settler,
    Ticks,
    _ticks,
    read_ticks,
    scheduled,
    sleepy,
)
from redline.profile.analyse.timeline import _both, _leading
from redline.profile.analyse.transitions import _crossings
from redline.profile.reader import Process, Shard
from tests.profile import streams

MS = 1_000_000
RUNS, WAITS = State(0, 0, levels.PYTHON), State(8, 8, levels.WAITING)


def thread(*points: tuple[int, State | None]) -> Decoded:
    """States from these times on, ms."""
    states = [None, RUNS, WAITS]
    times = np.array([t * MS for t, _ in points], np.int64)
    numbers = np.array([states.index(state) for _, state in points], np.uint32)
    empty = np.zeros(0, np.int64)
    last = int(times[-1]) + 5 * MS
    codes = np.zeros(0, np.uint16)
    return Decoded(0, (times, numbers), states, empty, codes, empty, empty, empty, last)


def ticks(*rows: tuple[int, int, int, int]) -> Ticks:
    """(begin, end, ran, ready) of each, ms."""
    begin, end, ran, ready = (np.array(each, np.int64) * MS for each in zip(*rows, strict=True))
    return Ticks(begin, end, ran, ready)


def settled(made: Decoded, looks: Ticks) -> Settled:
    settler = Settler(looks)
    settler.add(made, 0, FOREVER)
    return settler.settled()


def laid(
    made: Decoded, *rows: tuple[int, int, int, int], off: Sequence[tuple[int, int]] = ()
) -> Decoded:
    """`scheduled` by looks of (begin, end, ran, ready), and (since, ns) without a core, ms."""
    looks = replace(ticks(*rows), off=off_of(*off))
    return scheduled(made, settled(made, looks), None)


def off_of(*rows: tuple[int, int]) -> Off:
    """(since, how long) of each, ms."""
    return Off(*(np.array(rows, np.int64).reshape(-1, 2) * MS).T.copy())


def shown(made: Decoded, end_ms: int) -> list[tuple[float, float, str | None]]:
    """(begin, end, level) of each state, ms."""
    edges = [*(made.stream[0] / MS).tolist(), end_ms]
    states = [made.states[number] for number in made.stream[1].tolist()]
    names = [None if state is None else levels.LEVELS[state.level] for state in states]
    return [(*edge, name) for edge, name in zip(pairwise(edges), names, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_idle_times_equal_counting_every_millisecond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.choice(60, 12, replace=False)).tolist()
    points = [(t, (None, RUNS, WAITS)[rng.integers(0, 3)]) for t in times]
    edges = np.sort(rng.choice(70, 5, replace=False)).tolist()
    settler = Settler(ticks(*((a, b, 0, 0) for a, b in pairwise(edges))))
    settler.add(thread(*points), 0, FOREVER)
    state_at = dict(points)

    def is_idle(ms: int) -> bool:
        before = [t for t in times if t <= ms]
        return not before or state_at[max(before)] != RUNS

    expected = [sum(map(is_idle, range(a, b))) for a, b in pairwise(edges)]
    assert (settler.settled().idle_ns / MS).tolist() == expected
    assert settler._begins_idle.tolist() == [is_idle(a) for a in edges[:-1]]


def plainly_laid(
    made: Decoded, looks: Settled, unseen_ns: np.ndarray, most: int = 8
) -> list[tuple[int, int, int]]:
    """What `csrc/ticks.c` does, tick by tick and in lists, where no thread says more."""
    times, numbers = (column.tolist() for column in made.stream)
    pieces: list[tuple[int, int, int]] = []
    rows = zip(looks.begin_ns, looks.end_ns, looks.ready_ns, unseen_ns, strict=True)
    for begin, end, ready, unseen in rows:
        stretches = []
        for at, until, number in zip(times, [*times[1:], 1 << 62], numbers, strict=True):
            first, last = max(at, int(begin)), min(until, int(end))
            if made.states[number] != WAITS and last - first >= scheduling.SHORTEST_READY_NS:
                stretches.append([last - first, first, last])
        stretches = sorted(stretches, key=lambda stretch: -stretch[0])[:most]
        for left, shortest, level in (
            (int(ready), scheduling.SHORTEST_READY_NS, levels.READY),
            (int(unseen), scheduling.SHORTEST_SLEEP_NS, levels.WAITING),
        ):
            for stretch in sorted(stretches, reverse=True):
                taken = min(left, stretch[0])
                if left < shortest or stretch[0] < shortest:
                    break
                pieces.append((stretch[2] - taken, stretch[2], level))
                stretch[0], stretch[2], left = stretch[0] - taken, stretch[2] - taken, left - taken
    return sorted(pieces)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_equal_a_plain_search(seed: int) -> None:
    """Up to 60 states, most of them short, so that ticks hold more stretches than are taken."""
    rng = np.random.default_rng(seed)
    points = [(int(t), (None, RUNS, WAITS)[rng.integers(0, 3)]) for t in range(0, 60)]
    made = thread(*points)
    times = np.cumsum(rng.choice([MS // 4, MS, 2 * MS], 60)).astype(np.int64)
    made = replace(made, stream=(times, made.stream[1]))
    edges = np.sort(rng.choice(int(times[-1]) + 20 * MS, 6, replace=False))
    ready, unseen = rng.integers(0, 9 * MS, (2, 5))
    nothing = np.zeros(5, np.int64)
    looks = Settled(edges[:-1], edges[1:], nothing, ready, nothing)
    waits = np.array([state == WAITS for state in made.states])
    found = scheduling._pieces(made.stream, waits, looks, unseen, np.ones(5, np.bool_))
    assert list(map(tuple, found.tolist())) == plainly_laid(made, looks, unseen)


@pytest.mark.parametrize("seed", range(40))
def test_no_instant_is_told_twice_and_no_more_than_the_system_says(seed: int) -> None:
    """With any places of which the thread says that it had no core, and looks of any length."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.choice([MS // 4, MS, 3 * MS], 60)).astype(np.int64)
    points = [(t, (None, RUNS, WAITS)[rng.integers(0, 3)]) for t in range(60)]
    made = replace(thread(*points), stream=(times, thread(*points).stream[1]))
    edges = np.sort(rng.choice(int(times[-1]) + 20 * MS, 9, replace=False))
    ready, unseen = rng.integers(0, 9 * MS, (2, 8))
    nothing = np.zeros(8, np.int64)
    begins = np.sort(rng.choice(int(times[-1]), 30, replace=False))
    off = Off(begins, rng.integers(-MS, 5 * MS, 30))
    looks = Settled(edges[:-1], edges[1:], nothing, ready, nothing, off)
    waits = np.array([state is None or state == WAITS for state in made.states])
    found = scheduling._pieces(made.stream, waits, looks, unseen, np.ones(8, np.bool_))
    assert (found[1:, 0] >= found[:-1, 1]).all()
    assert (found[:, 1] > found[:, 0]).all()
    own = np.searchsorted(edges, found[:, 0], side="right") - 1
    assert (found[:, 1] <= edges[own + 1]).all()
    for level, most in ((levels.READY, ready), (levels.WAITING, unseen)):
        told = np.zeros(8, np.int64)
        np.add.at(told, own, np.where(found[:, 2] == level, found[:, 1] - found[:, 0], 0))
        assert (told <= most).all()
    states = made.stream[1][np.searchsorted(times, found[:, 0], side="right") - 1]
    assert not waits[states].any()


def test_ready_time_lies_where_the_thread_says_that_it_had_no_core() -> None:
    """Of 40 ms 8 were on the run queue: 3 behind its event at 2 ms, 5 behind that at 30, though the
    stretch from 10 to 30 is longer."""
    points = (0, RUNS), (5, WAITS), (10, RUNS), (30, RUNS), (36, WAITS)
    made = laid(thread(*points), (0, 40, 23, 8), off=[(2, 3), (30, 5)])
    busy = [each for each in shown(made, 40) if each[2] == "ready"]
    assert busy == [(2, 5, "ready"), (30, 35, "ready")]


def test_what_lies_surely_between_two_looks_is_told_before_what_crosses_one() -> None:
    """It had no core for 3 ms since 4, and for 6 since 16, which may lie before 20 or behind. Of
    the 5 on the run queue by 20 those 3 are the first. The 4 that are told by 40 lie behind 20."""
    points = (0, RUNS), (8, WAITS), (16, RUNS), (30, WAITS)
    made = laid(thread(*points), (0, 20, 7, 5), (20, 40, 6, 4), off=[(4, 3), (16, 6)])
    busy = [each for each in shown(made, 40) if each[2] == "ready"]
    assert busy == [(4, 7, "ready"), (16, 18, "ready"), (20, 24, "ready")]


def test_times_too_short_to_be_told_from_the_clocks_errors_are_not() -> None:
    """2 ms on the run queue, and 0.003 ms in which it neither ran nor was ready: no wait."""
    looks = replace(ticks((0, 20, 18, 2)), ran_ns=np.array([18 * MS - 3000]), off=off_of((4, 3)))
    made = thread((0, RUNS))
    assert [each for each in shown(scheduled(made, settled(made, looks), None), 20)] == [
        (0, 4, "python"),
        (4, 6, "ready"),
        (6, 20, "python"),
    ]


def test_what_no_event_says_is_still_taken_from_the_longest_stretch() -> None:
    """9 ms on the run queue, of which the thread knows 2."""
    made = laid(thread((0, RUNS), (6, WAITS), (8, RUNS)), (0, 20, 9, 9), off=[(1, 2)])
    busy = [each for each in shown(made, 20) if each[2] == "ready"]
    assert busy == [(1, 3, "ready"), (13, 20, "ready")]


def test_ready_time_is_taken_from_the_end_of_the_longest_stretch() -> None:
    """Of 20 ms 8 were on the run queue: not in the wait of 5 to 9, nor in the shorter 0 to 5."""
    made = laid(thread((0, RUNS), (5, WAITS), (9, RUNS)), (0, 20, 8, 8))
    levels_of = [(0, 5, "python"), (5, 9, "waiting"), (9, 12, "python"), (12, 20, "ready")]
    assert shown(made, 20)[:4] == levels_of


def test_who_was_ready_within_a_wait_took_nothing_from_its_work() -> None:
    """20 ms, of which it waited from 5 to 15. Its 10 of work were CPU time: the 4 on the run queue
    are the end of the wait, when it was woken and got no core. Of 8 of CPU time 2 are in the work.
    """
    points = (0, RUNS), (5, WAITS), (15, RUNS)
    made = laid(thread(*points), (0, 20, 10, 4))
    assert shown(made, 20) == [(0, 5, "python"), (5, 15, "waiting"), (15, 20, "python")]
    lasted = [
        b - a for a, b, level in shown(laid(thread(*points), (0, 20, 8, 4)), 20) if level == "ready"
    ]
    assert sum(lasted) == 2


def test_a_thread_that_is_gone_is_left_alone() -> None:
    """It was there for 4 ms and ran for 2 of them: of the 10 on the run queue 2 are its work."""
    made = laid(thread((0, RUNS), (4, None)), (0, 20, 2, 10))
    assert shown(made, 20) == [(0, 2, "python"), (2, 4, "ready"), (4, 20, None)]


def test_a_thread_that_was_not_there_yet_was_not_ready_either() -> None:
    """It came 2 ms before the second look and ran all the time: said or not, it was not there."""
    for points in ([(18, RUNS)], [(0, None), (18, RUNS)]):
        made = laid(thread(*points), (0, 20, 2, 10))
        assert [each for each in shown(made, 20) if each[2]] == [(18, 20, "python")]


def test_ready_time_that_does_not_fit_lies_before_the_look_if_the_thread_was_at_work() -> None:
    """Interrupted from 8 to 22 ms, told between 20 and 40: work until 25, of which 11 ran."""
    made = laid(thread((0, RUNS), (25, WAITS)), (0, 20, 8, 0), (20, 40, 3, 14))
    spent = dict.fromkeys(("python", "ready", "waiting"), 0.0)
    for begin, end, level in shown(made, 40):
        spent[level or ""] += end - begin
    assert spent == {"python": 11, "ready": 14, "waiting": 15}


def test_ready_time_at_the_end_of_a_wait_does_not_lie_before_it() -> None:
    """It waited from 10 to 25 and had no core for the last 6. Before, 4 of 10 ms were CPU time."""
    made = laid(thread((0, RUNS), (10, WAITS), (25, RUNS)), (0, 20, 4, 0), (20, 40, 15, 6))
    assert "ready" not in {level for _, _, level in shown(made, 40)}


HIGH, LOOK = layout.CODE_HIGH, layout.CODE_ANCHOR
FIRST, INDEX, RAN, READY = layout.TICK_FIRST, layout.TICK_THREAD, layout.TICK_RAN, layout.TICK_READY


def process_with(*rows: tuple[int, int]) -> Process:
    """With these (number, code) rows of the scheduler."""
    made = streams.process([(0, layout.CODE_WINDOW_ON)])
    numbers, codes = (np.array(column) for column in zip(*rows, strict=True))
    shard = Shard(Path("x"), numbers.astype(np.uint32), codes.astype(np.uint16), None)
    vars(made)["scheduler"] = shard
    return made


def test_a_number_that_does_not_fit_into_a_row_comes_in_two() -> None:
    """Looks at 1 ns and at 3 * 2**32 ns; in between the thread ran for 2**32 + 5 ns."""
    rows = [(0, HIGH), (1, LOOK), (0, FIRST), (3, HIGH), (0, LOOK), (0, INDEX)]
    found = read_ticks(process_with(*rows, (1, HIGH), (5, RAN), (7, READY)))[0]
    assert found.end_ns.tolist() == [3 * 2**32]
    assert (found.ran_ns.tolist(), found.ready_ns.tolist()) == ([2**32 + 5], [7])


def test_damage_from_the_first_row_on_leaves_nothing() -> None:
    damage = (layout.LARGEST_HIGH, HIGH)
    process = process_with(damage, (1, LOOK), (0, FIRST), (0, INDEX), (5, RAN), (7, READY))
    assert read_ticks(process) == {}
    assert any("damaged after 0 rows" in problem for problem in process.problems)


def test_a_thread_says_where_it_had_no_core() -> None:
    """5 ns since 2**32 + 1, and 7 since 9, in any order; not of a thread that nobody looks at."""
    begin, none = layout.TICK_AT, layout.TICK_OFF
    rows = [(1, LOOK), (0, FIRST), (0, INDEX), (1, HIGH), (1, begin), (5, none)]
    rows += [(1, INDEX), (3, begin), (3, none), (0, INDEX), (9, begin), (7, none)]
    found = read_ticks(process_with(*rows))
    assert list(found) == [0]
    assert found[0].off.begin_ns.tolist() == [9, 2**32 + 1]
    assert found[0].off.off_ns.tolist() == [7, 5]


@pytest.mark.parametrize("damage", [(2**32 - 1, HIGH), (layout.LARGEST_HIGH, HIGH), (0, HIGH)])
def test_looks_at_times_that_cannot_be_are_left_out_and_named(damage: tuple[int, int]) -> None:
    """Beyond 52 days, or before the look before."""
    rows = [(1, HIGH), (1, LOOK), (0, FIRST), (1, HIGH), (9, LOOK), damage, (2, LOOK), (0, INDEX)]
    process = process_with(*rows, (5, RAN), (7, READY))
    found = read_ticks(process)[0]
    assert (found.begin_ns.tolist(), found.end_ns.tolist()) == ([2**32 + 1], [2**32 + 9])
    assert any("scheduler.arrow: damaged after" in problem for problem in process.problems)


def told_by(times: list[int], rows: dict[int, tuple[int, int]]) -> Ticks:
    """Looks at these times, of which some tell {look: (ran, ready)}."""
    looks, (ran, ready) = np.array(list(rows)), np.array(list(rows.values())).T
    return _ticks(np.array(times), 0, looks, ran, ready)


def test_a_long_wait_for_a_core_fills_all_ticks_that_it_lasted() -> None:
    """Ticks of 10; 2 of work in the first, 3 in the third, which tells of 25 on the run queue: 7
    of them fit into it, 10 into the one before, 8 into the first. Nobody slept."""
    told = told_by([0, 10, 20, 30], {1: (2, 0), 3: (3, 25)})
    told = settled(thread((0, RUNS)), told)
    assert told.ready_ns.tolist() == [8, 10, 7]
    assert told.slept_ns.tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 25), st.integers(0, 60)), min_size=1))
def test_time_on_the_run_queue_lies_where_there_is_room_for_it(
    looks: list[tuple[int, int, int]],
) -> None:
    """Each tick's (length, CPU time, told time on the run queue): every unit told goes to the last
    tick with room, up to the one that tells it."""
    length, ran, told = zip(*looks, strict=True)
    room = [max(a - b, 0) for a, b in zip(length, ran, strict=True)]
    wanted = [0] * len(looks)
    for i in reversed(range(len(looks))):
        for _ in range(told[i]):
            free = [j for j in range(i + 1) if wanted[j] < room[j]]
            if free:
                wanted[free[-1]] += 1
    rows = {i + 1: (ran[i], told[i]) for i in range(len(looks))}
    found = settled(thread((0, RUNS)), told_by([0, *np.cumsum(length).tolist()], rows))
    assert found.ready_ns.tolist() == wanted


def test_sleepy_ticks_are_those_slept_for_a_fifth_or_more() -> None:
    """Of 20 ms slept: 3, 4 (though 10 were on the run queue), 20."""
    looks = ticks((0, 20, 17, 0), (20, 40, 6, 10), (40, 60, 0, 0))
    times, asleep = sleepy(settled(thread((0, RUNS)), looks))
    assert (times // MS).tolist() == [0, 20, 40, 60]
    assert asleep.tolist() == [0, 1, 1, 0]


def test_no_tick_is_no_doubt() -> None:
    times, asleep = sleepy(Settled(*np.zeros((5, 0), np.int64)))
    assert len(times) == len(asleep) == 0


def test_doubt_is_where_a_thread_slept_and_no_call_was_seen() -> None:
    blind = np.array([10, 50], np.int64), np.array([1, 0], np.uint32)
    asleep = np.array([0, 20, 40, 60], np.int64), np.array([0, 1, 1, 0], np.uint32)
    times, both = _both(blind, asleep)
    held = [(int(t), int(s)) for t, s in zip(times, both, strict=True)]
    assert held == [(0, 0), (10, 0), (20, 1), (40, 1), (50, 0), (60, 0)]


@pytest.mark.parametrize(
    ("first", "leads"),
    [
        (RUNS, ["first", "second", "first"]),  # outside all marks: it may wait
        (State(4, 4, levels.PYTHON), ["first"]),  # at work in a mark
        (State(4, 0, levels.PYTHON), ["first", "second", "first"]),
        (State(0, 0, levels.BACKEND), ["first"]),  # in a native call
    ],
)
def test_who_may_wait_gives_way_to_who_is_at_work(first: State, leads: list[str]) -> None:
    """Where there is doubt of the first thread, from 10 to 20 ms; both work from 0 to 30."""
    other = State(6, 6, levels.PYTHON)
    threads = [thread((0, RUNS), (30, None)), thread((0, RUNS), (30, None))]
    for made, state in zip(threads, (first, other), strict=True):
        made.states[1] = state
    doubt = np.array([10 * MS, 20 * MS], np.int64), np.array([1, 0], np.uint32)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    states, (times, numbers) = _leading(threads, [doubt, nothing])
    names = {first: "first", other: "second"}
    shown = [
        (t // MS, names[states[n]])
        for t, n in zip(times.tolist(), numbers.tolist(), strict=True)
        if n
    ]
    assert [name for _, name in shown] == leads
    assert [t for t, _ in shown] == ([0, 10, 20] if len(leads) > 1 else [0])


def test_of_two_in_doubt_the_first_leads() -> None:
    threads = [thread((0, RUNS), (30, None)), thread((0, WAITS), (5, RUNS), (30, None))]
    doubt = np.array([0], np.int64), np.array([1], np.uint32)
    states, (times, numbers) = _leading(threads, [doubt, doubt])
    shown = [
        (t // MS, states[n]) for t, n in zip(times.tolist(), numbers.tolist(), strict=True) if n
    ]
    assert shown == [(0, RUNS)]


@pytest.mark.parametrize(("ran", "ready"), [(13, 7), (13, 0)])
def test_a_lost_core_is_no_crossing_and_hides_none(ran: int, ready: int) -> None:
    """Calls at 6 and 18 ms. The first began without a core for 2 ms, known by the thread itself.

    5 ms more are laid on the end of the Python before the second; asleep, where not ready.
    """
    call = State(8, 8, levels.BACKEND)
    made = replace(
        thread((0, RUNS), (6, WAITS), (12, RUNS), (18, WAITS)), states=[None, RUNS, call]
    )
    looks = replace(ticks((0, 20, ran, ready)), off=off_of((6, 2)))
    never = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    found = scheduled(made, settled(made, looks), never)
    idle = "ready" if ready else "waiting"
    assert [(at, level) for at, _, level in shown(found, 20)] == [
        (0, "python"),
        (6, idle),
        (8, "backend"),
        (12, "python"),
        (13, idle),
        (18, "backend"),
    ]
    assert _crossings(found) == {(8, levels.BACKEND): 2}
