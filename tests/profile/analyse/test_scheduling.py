"""What threads did between looks of the scheduler: against plain counting, and by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from redline.profile import levels
from redline.profile.analyse import scheduling
from redline.profile.analyse.decoded import Decoded, State
from redline.profile.analyse.scheduling import Ticks, scheduled

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
    return Ticks(*(np.array(column, np.int64) * MS for column in zip(*rows, strict=True)))


@pytest.mark.parametrize("seed", range(20))
def test_known_waits_equal_counting_every_millisecond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.choice(60, 12, replace=False)).tolist()
    points = [(t, (None, RUNS, WAITS)[rng.integers(0, 3)]) for t in times]
    made = thread(*points)
    edges = np.sort(rng.choice(70, 5, replace=False)).tolist()
    looks = ticks(*((a, b, 0, 0) for a, b in pairwise(edges)))
    waits = np.array([state == WAITS for state in made.states])
    found = scheduling._waited(made.stream, waits, looks)
    state_at = dict(points)

    def waits_at(ms: int) -> bool:
        before = [t for t in times if t <= ms]
        return bool(before) and state_at[max(before)] == WAITS

    expected = [sum(map(waits_at, range(a, b))) for a, b in pairwise(edges)]
    assert (found / MS).tolist() == expected


def test_ready_time_is_taken_from_the_end_of_the_longest_stretch() -> None:
    """Of 20 ms 8 were on the run queue: not in the wait of 5 to 9, nor in the shorter 0 to 5."""
    made = scheduled(thread((0, RUNS), (5, WAITS), (9, RUNS)), ticks((0, 20, 8, 8)), None)
    times = (made.stream[0] // MS).tolist()
    shown = [made.states[number] for number in made.stream[1].tolist()]
    assert times[:4] == [0, 5, 9, 12]
    assert shown[:4] == [RUNS, WAITS, RUNS, State(0, 0, levels.READY)]
    assert shown[4:] == [RUNS] * len(shown[4:])


def test_a_thread_that_is_gone_is_left_alone() -> None:
    made = scheduled(thread((0, RUNS), (4, None)), ticks((0, 20, 2, 10)), None)
    assert {made.states[number] for number in made.stream[1].tolist()} <= {
        RUNS,
        None,
        State(0, 0, levels.READY),
        State(0, 0, levels.WAITING),
    }
    after = [number for t, number in zip(*made.stream, strict=True) if t >= 4 * MS]
    assert [made.states[number] for number in after] == [None] * len(after)
