"""Times of rows, piece by piece, against numpy and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.decoded import row_times
from redline.profile.reader import Rows, ShardClock

HIGH, ANCHOR, CPU = layout.CODE_HIGH, layout.CODE_ANCHOR, layout.CODE_CPU
EVENT = 2 * 9
ROW = st.one_of(
    st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([EVENT, EVENT + 1, layout.CODE_STEP])),
    st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([CPU, layout.CODE_DROPPED])),
    st.tuples(st.sampled_from([0, 1, layout.LARGEST_HIGH - 1, layout.LARGEST_HIGH]), st.just(HIGH)),
    st.tuples(st.integers(0, 9), st.just(ANCHOR)),
)


def rows_of(rows: list[tuple[int, int]]) -> Rows:
    deltas, codes = (np.array([row[k] for row in rows]) for k in (0, 1))
    return deltas.astype(np.uint32), codes.astype(np.uint16)


def sound_by_numpy(rows: Rows) -> int:
    """How many rows of a whole shard are sound: every absolute time against the one before."""
    deltas, codes = rows
    anchors = np.flatnonzero(codes == ANCHOR)
    payloads = (codes >= ANCHOR) & (codes < layout.CODE_BEAT)
    running = np.concatenate([[0], np.cumsum(np.where(payloads, 0, deltas), dtype=np.int64)])
    before: NDArray[Any] = np.maximum(anchors - 1, 0)
    high = deltas[before].astype(np.int64)
    good = (anchors > 0) & (codes[before] == HIGH) & (high < layout.LARGEST_HIGH)
    absolute = (high << 32) + deltas[anchors]
    good[1:] &= absolute[1:] >= absolute[:-1] + np.diff(running[anchors])
    bad = np.flatnonzero(~good)
    return int(anchors[bad[0]]) if len(bad) else len(codes)


def times_by_numpy(rows: Rows, since_ns: int) -> NDArray[np.int64]:
    """Of each row; what follows an absolute time counts from it."""
    deltas, codes = rows
    timed = (codes < ANCHOR) | (codes >= layout.CODE_BEAT)
    running = np.cumsum(np.where(timed, deltas, 0), dtype=np.int64)
    anchors = np.flatnonzero(codes == ANCHOR)
    anchors = anchors[anchors > 0]
    if len(anchors) == 0:
        return running + since_ns
    absolute = (deltas[anchors - 1].astype(np.int64) << 32) + deltas[anchors]
    starts = np.concatenate([[since_ns], absolute - running[anchors]])
    lengths = np.diff(np.concatenate([[0], anchors, [len(codes)]]))
    return running + np.repeat(starts, lengths)


@given(st.lists(ROW, max_size=40), st.integers(0, 2**40))
def test_times_of_rows_are_those_of_numpy(rows: list[tuple[int, int]], since_ns: int) -> None:
    whole = rows_of(rows)
    assert row_times(whole, since_ns).tolist() == times_by_numpy(whole, since_ns).tolist()


@given(st.lists(ROW, max_size=40), st.data())
def test_pieces_say_what_numpy_says_of_the_whole(rows: list[tuple[int, int]], data: Any) -> None:
    """Cut anywhere but between the two rows of an absolute time, as shards are."""
    deltas, codes = whole = rows_of(rows)
    sound, times = sound_by_numpy(whole), row_times(whole)
    clock, at = ShardClock(), 0
    while at < len(codes):
        upto = data.draw(st.integers(at + 1, len(codes)))
        upto += upto < len(codes) and int(codes[upto]) == ANCHOR
        found = clock.follow((deltas[at:upto], codes[at:upto]))
        assert at + found == min(sound, upto)
        if found < upto - at:
            return
        assert clock.now_ns == times[upto - 1]
        timed = np.flatnonzero((codes[at:upto] < ANCHOR) | (codes[at:upto] >= layout.CODE_BEAT))
        if len(timed):
            assert clock.first_ns == times[at + timed[0]]
        at = upto
    assert sound == len(codes)


def test_by_hand() -> None:
    clock = ShardClock()
    # 2**32 + 7 absolute, 5 later an event, a number of its CPU time, 3 later another.
    rows = [(1, HIGH), (7, ANCHOR), (5, EVENT), (0, HIGH), (99, CPU), (3, EVENT + 1)]
    assert clock.follow(rows_of(rows)) == 6
    assert (clock.first_ns, clock.now_ns) == (2**32 + 12, 2**32 + 15)
    by_hand = [9, 2**32 + 7, 2**32 + 12, 2**32 + 12, 2**32 + 12, 2**32 + 15]
    assert row_times(rows_of(rows), 9).tolist() == by_hand
    # An absolute time that is 1 ns too early, and a number without its first row.
    assert clock.follow(rows_of([(2, EVENT), (1, HIGH), (16, ANCHOR)])) == 2
    assert ShardClock().follow(rows_of([(16, ANCHOR)])) == 0
