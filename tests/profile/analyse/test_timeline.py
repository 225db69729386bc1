"""Streams of states: decoding, merging threads, summing; C = numpy = by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile import _sweep, layout
from redline.profile.analyse.cells import (
    BlindShares,
    compute_cells,
    sweep_numpy,
    sweep_streams,
)
from redline.profile.analyse.decoded import decode
from redline.profile.analyse.timeline import Stream, build_timeline
from redline.profile.reader import Name
from tests.profile.streams import (
    EVENTS,
    INFERENCE,
    INFERRED,
    NAMES,
    SIMULATION,
    SLEEP,
    TORCH,
    WARM_UP,
    begin,
    cells,
    end,
    process,
)


def test_nested_operations_and_levels_by_hand() -> None:
    """simulation 10..90 with a back-end call 20..50, inside which inference runs 30..40."""
    assert cells(
        [
            (0, layout.CODE_WINDOW_ON),
            (10, begin(SIMULATION)),
            (20, begin(TORCH)),
            (30, begin(INFERENCE)),
            (40, end(INFERENCE)),
            (50, end(TORCH)),
            (90, end(SIMULATION)),
        ]
    ) == {
        ("", "other", "python"): 20,
        ("", "simulation", "python"): 50,
        ("", "simulation", "backend"): 20,
        ("", "inference", "backend"): 10,
    }


def test_interleaved_operations_by_hand() -> None:
    """simulation 0..20 and inference 10..30 overlap: the later one counts until both are over."""
    assert cells(
        [
            (0, layout.CODE_WINDOW_ON),
            (0, begin(SIMULATION)),
            (10, begin(INFERENCE)),
            (20, end(SIMULATION)),
            (30, end(INFERENCE)),
        ]
    ) == {
        ("", "simulation", "python"): 10,
        ("", "inference", "python"): 20,
        ("", "other", "python"): 70,
    }


def test_a_call_within_one_of_the_same_function_has_no_time() -> None:
    """Each 10..40 and 50..90, with one within: the first ends before, the other with the window.

    Cut in between, the pieces say as much.
    """
    within = [(10, begin(TORCH)), (20, begin(TORCH)), (30, end(TORCH)), (40, end(TORCH))]
    cut = [(50, begin(TORCH)), (60, begin(TORCH)), (90, layout.CODE_WINDOW_OFF)]
    made = process([(0, layout.CODE_WINDOW_ON), *within, *cut])
    found = decode(made, made.threads[0])
    assert (found.inclusive_ns[TORCH], found.counts[TORCH]) == (70, 4)
    (thread,) = made.threads
    tables = np.zeros((2, layout.MAX_IDS), np.uint8)
    tables[0, TORCH] = layout.KINDS["call"]
    sums, carry = 0, b""
    for rows in (slice(0, 3), slice(3, 7), slice(7, None)):
        piece = thread.deltas[rows], thread.codes[rows]
        raw = _sweep.decode(*piece, *tables, carry, 0, 1 << 62)
        sums += int(np.frombuffer(raw["inclusive_ns"], np.int64)[TORCH:].sum())
        carry = raw["carry"]
    assert sums == 70


def test_a_waiting_thread_yields_to_a_working_one() -> None:
    """The first thread sleeps 20..80; the second works in inference 30..60."""
    assert cells(
        [(0, layout.CODE_WINDOW_ON), (20, begin(SLEEP)), (80, end(SLEEP))],
        [(30, begin(INFERENCE)), (60, end(INFERENCE)), (60, layout.CODE_THREAD_END)],
    ) == {
        ("", "other", "python"): 40,
        ("", "other", "waiting"): 30,
        ("", "inference", "python"): 30,
    }


def test_time_outside_the_window_is_no_time() -> None:
    assert cells([(10, layout.CODE_WINDOW_ON), (40, layout.CODE_WINDOW_OFF)]) == {
        ("", "other", "python"): 30
    }


def test_phases_belong_to_the_process() -> None:
    found = cells(
        [(0, layout.CODE_WINDOW_ON), (50, begin(SIMULATION)), (90, end(SIMULATION))],
        [(40, begin(WARM_UP)), (60, end(WARM_UP))],
    )
    assert found["warm-up", "simulation", "python"] == 10
    assert found["", "simulation", "python"] == 30
    assert sum(found.values()) == 100


def test_phases_that_begin_at_once_are_nested_as_they_were_recorded() -> None:
    """training around warm-up 10..40, both from the window's begin at 10; training to 80.

    The inner one has the smaller id: its name was known first.
    """
    training = max(NAMES) + 1
    made = process(
        [
            (10, layout.CODE_WINDOW_ON),
            (10, begin(training)),
            (10, begin(WARM_UP)),
            (40, end(WARM_UP)),
            (80, end(training)),
        ]
    )
    made.names = NAMES | {training: Name(training, "phase", "training", 0, None)}
    found = compute_cells(build_timeline(made)).time_ns
    assert {key[0]: ns for key, ns in found.items()} == {"warm-up": 30, "training": 40, "": 20}


def test_unobserved_time_is_split_like_the_observed() -> None:
    """simulation 0..40: half back end. Unobserved 40..80: 20 of each. Inferred ones come along."""
    found = compute_cells(
        build_timeline(
            process(
                [
                    (0, layout.CODE_WINDOW_ON),
                    (0, begin(SIMULATION)),
                    (0, begin(TORCH)),
                    (20, end(TORCH)),
                    (20, begin(INFERRED)),
                    (30, end(INFERRED)),
                    (40, layout.CODE_PROBE_OFF),
                    (80, layout.CODE_PROBE_ON),
                    (80, end(SIMULATION)),
                ]
            )
        )
    )
    assert sum(each.ns for each in found.hidden) == 40
    assert sum(found.observed_ns.values()) == 60
    assert found.time_ns == {
        ("", "simulation", "backend", False): 40,
        ("", "simulation", "python", False): 20,
        ("", "inference", "python", False): 20,
        ("", "other", "python", False): 20,
    }


def test_unobserved_time_is_never_split_to_times_without_a_core() -> None:
    """Half of what was observed had no core; the system tells so of unobserved time as well."""
    ready, python = (("", "other", level, False) for level in ("ready", "python"))
    shares = BlindShares()
    for key, ns in ((ready, 50), (python, 50)):
        shares.add(0, ("", 0, False), key, ns)
    assert shares.of(0, ("", 0, False)) == {python: 50}


def test_unobserved_time_is_split_like_the_time_beside_it() -> None:
    """Unmarked: 1 s of start-up that sleeps; then Python and back end half and half, in ms.

    The block 1400..1600 is split like 1300..1700, not like the session, of which 60% slept.
    """
    ms = 1_000_000
    events = [(0, layout.CODE_WINDOW_ON), (0, begin(SLEEP)), (1000, end(SLEEP))]
    for at in range(1000, 1400, 100):
        events += [(at, begin(TORCH)), (at + 50, end(TORCH))]
    events += [(1400, layout.CODE_PROBE_OFF), (1600, layout.CODE_PROBE_ON)]
    events += [(1600, begin(TORCH)), (1650, end(TORCH))]
    found = cells([(t * ms, code) for t, code in events], end_ns=1700 * ms)
    assert found == {
        ("", "other", "waiting"): 1000 * ms,
        ("", "other", "python"): 350 * ms,
        ("", "other", "backend"): 350 * ms,
    }


def test_unobserved_time_of_an_unknown_operation_is_unattributed() -> None:
    found = cells(
        [
            (0, layout.CODE_WINDOW_ON),
            (40, layout.CODE_PROBE_OFF),
            (40, begin(SIMULATION)),
            (80, end(SIMULATION)),
            (80, layout.CODE_PROBE_ON),
        ]
    )
    assert found == {("", "other", "python"): 60, ("", "simulation", "unattributed"): 40}


def test_a_thread_blocked_across_a_calibration_block_goes_on_waiting() -> None:
    """The first thread sleeps 10..90, the second works in inference 0..60 and then sleeps.

    The probe is off 40..60 and closes the first one's sleep, whose end at 90 is not recorded. It
    waits until its next event at 90 all the same: so 60..90 everybody waits, and the block's 20
    are split like the observed inference of the second thread.
    """
    found = cells(
        [
            (0, layout.CODE_WINDOW_ON),
            (10, begin(SLEEP)),
            (40, end(SLEEP)),
            (90, begin(SIMULATION)),
        ],
        [
            (0, begin(INFERENCE)),
            (40, layout.CODE_PROBE_OFF),
            (60, layout.CODE_PROBE_ON),
            (60, end(INFERENCE)),
            (60, begin(SLEEP)),
        ],
    )
    assert found == {
        ("", "other", "python"): 10,
        ("", "inference", "python"): 50,
        ("", "other", "waiting"): 30,
        ("", "simulation", "python"): 10,
    }


def test_a_thread_that_ended_as_the_probe_went_off_does_not_wait_on() -> None:
    found = cells(
        [(0, layout.CODE_WINDOW_ON), (40, layout.CODE_PROBE_OFF), (60, layout.CODE_PROBE_ON)],
        [(0, begin(SLEEP)), (40, end(SLEEP)), (40, layout.CODE_THREAD_END)],
    )
    assert found == {("", "other", "python"): 100}


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=3))
def test_cells_sum_to_the_wall_time_whatever_the_events(
    threads: list[list[tuple[int, int]]],
) -> None:
    """Unmatched ends, begins without end, any interleaving: no nanosecond is lost or doubled."""
    timed = []
    for steps in threads:
        times = np.cumsum([dt for dt, _ in steps]).astype(int).tolist()
        timed.append([(0, layout.CODE_WINDOW_ON), *zip(times, (c for _, c in steps), strict=True)])
    assert sum(cells(*timed, end_ns=1000).values()) == 1000


def streams(draw: Any, count: int, size: int) -> list[Stream]:
    made = []
    for _ in range(count):
        times = sorted(draw(st.lists(st.integers(0, 60), max_size=20)))
        states = draw(st.lists(st.integers(0, size - 1), min_size=len(times), max_size=len(times)))
        made.append((np.array(times, np.int64), np.array(states, np.uint32)))
    return made


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_c_sweep_equals_numpy_and_counting(data: Any) -> None:
    made = streams(data.draw, 3, 3)
    table = sweep_streams(made, [3, 3, 3], 5, 50)
    assert (table == sweep_numpy(made, [3, 3, 3], 5, 50)).all()
    counted = np.zeros((3, 3, 3), int)
    for t in range(5, 50):
        state = [int([0, *s[x <= t].tolist()][-1]) for x, s in made]
        counted[tuple(state)] += 1
    assert (table == counted).all()
    assert table.sum() == 45


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_leader_is_the_first_that_is_not_idle(data: Any) -> None:
    a, b = streams(data.draw, 2, 4)
    idle = bytes([1, 0, 1, 0])
    times, states = _sweep.lead(a, b, idle)
    merged = np.frombuffer(times, np.int64), np.frombuffer(states, np.uint32)
    for t in range(61):
        x, y, z = (int([0, *s[at <= t].tolist()][-1]) for at, s in (a, b, merged))
        expected = x if not idle[x] else y if not idle[y] else x or y
        assert z == expected


def test_bad_buffers_are_refused() -> None:
    good = (np.array([0, 5], np.int64), np.array([1, 0], np.uint32))
    with pytest.raises(ValueError, match="beyond its size"):
        sweep_streams([good], [1], 0, 10)
    with pytest.raises(TypeError, match="4 bytes, not of 8"):
        sweep_streams([(good[0], good[0])], [2], 0, 10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="unsorted"):
        sweep_streams([(good[0][::-1].copy(), good[1])], [2], 0, 10)
    with pytest.raises(ValueError, match="begin <= end"):
        sweep_streams([good], [2], 10, 0)
