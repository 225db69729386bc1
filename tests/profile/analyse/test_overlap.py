"""The sweep: C = numpy = one nanosecond at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline import profile
from redline.errors import ConfigError
from redline.profile.analyse.overlap import overlap_numpy

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)
LABELLED = st.dictionaries(st.sampled_from("abcdefg"), INTERVALS, max_size=7)


def brute_force(intervals: dict[str, list[tuple[int, int]]]) -> dict[frozenset[str], int]:
    """Ask each nanosecond [t, t + 1) which labels cover it."""
    ends = [end for pairs in intervals.values() for _, end in pairs]
    totals: dict[frozenset[str], int] = {}
    for t in range(max(ends, default=0)):
        active = frozenset(
            label
            for label, pairs in intervals.items()
            if any(start <= t < end for start, end in pairs)
        )
        if active:
            totals[active] = totals.get(active, 0) + 1
    return totals


def test_overlap_worked_by_hand() -> None:
    """CPU 0..10 and 20..30, GPU 5..25: together 5..10 and 20..25, CPU alone 10 ns, GPU alone 10."""
    result = profile.overlap({"cpu": [(0, 10), (20, 30)], "gpu": [(5, 25)]})
    assert result == {
        frozenset({"cpu"}): 10,
        frozenset({"gpu"}): 10,
        frozenset({"cpu", "gpu"}): 10,
    }


def test_overlapping_intervals_of_one_label_count_once() -> None:
    """Fault 33: summed kernel durations exceed the time they took when streams overlap.

    Three kernels of 10 ns on two streams, 0..10, 5..15 and 15..25, keep the GPU busy for 25 ns,
    not for 30.
    """
    assert profile.overlap({"gpu": [(0, 10), (5, 15), (15, 25)]}) == {frozenset({"gpu"}): 25}


@settings(max_examples=300, deadline=None)
@given(LABELLED)
def test_c_equals_numpy_equals_brute_force(intervals: dict[str, list[tuple[int, int]]]) -> None:
    expected = brute_force(intervals)
    assert profile.overlap(intervals) == expected
    assert overlap_numpy(intervals) == expected


@settings(max_examples=100, deadline=None)
@given(LABELLED)
def test_parts_sum_to_the_union(intervals: dict[str, list[tuple[int, int]]]) -> None:
    total = sum(profile.overlap(intervals).values())
    everything = [pair for pairs in intervals.values() for pair in pairs]
    assert total == sum(profile.overlap({"any": everything}).values())


@settings(max_examples=50, deadline=None)
@given(LABELLED, st.integers(1, 2**61))
def test_shifting_all_times_changes_nothing(
    intervals: dict[str, list[tuple[int, int]]], shift: int
) -> None:
    moved = {k: [(a + shift, b + shift) for a, b in pairs] for k, pairs in intervals.items()}
    assert profile.overlap(moved) == profile.overlap(intervals)


def test_many_labels_take_the_sparse_path() -> None:
    """40 labels, label k active in [k, 100): each nanosecond before 40 adds one label."""
    result = profile.overlap({k: [(k, 100)] for k in range(40)})
    assert result[frozenset(range(40))] == 61
    assert result[frozenset({0})] == 1
    assert sum(result.values()) == 100


def test_random_large_input_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    data = {}
    for label in range(5):
        starts = np.sort(rng.integers(0, 10**9, 20_000))
        data[label] = np.stack([starts, starts + rng.integers(0, 40_000, 20_000)], axis=1)
    assert profile.overlap(data) == overlap_numpy(data)


@pytest.mark.parametrize("empty", [{}, {"a": []}, {"a": [(3, 3)]}])
def test_nothing_active_gives_nothing(empty: dict[str, list[tuple[int, int]]]) -> None:
    assert profile.overlap(empty) == {}


def test_bad_intervals_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'gpu' ends before it starts: \(5, 4\)"):
        profile.overlap({"gpu": [(0, 1), (5, 4)]})
    with pytest.raises(ConfigError, match="whole nanoseconds"):
        profile.overlap({"gpu": [(0.5, 1.5)]})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="65 labels"):
        profile.overlap({k: [(0, 1)] for k in range(65)})
