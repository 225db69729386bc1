"""A session analysed in slices says what the whole says, however it is cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile import layout
from redline.profile.analyse import slices, timeline
from redline.profile.analyse.scheduling import Off, Ticks
from redline.profile.analyse.slices import outline, slices_of
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.reader import Process, Session, Shard, Source
from tests.profile import streams
from tests.profile.streams import INFERENCE, INFERRED, SIMULATION, SLEEP, TORCH, WARM_UP

MS = 1_000_000
FORWARD, LEARNING, COLLECTION, STARTUP = range(20, 24)
NAMES = {
    **streams.NAMES,
    **{
        number: streams.Name(number, "inferred", name, 0, None)
        for number, name in (
            (FORWARD, "forward"),
            (LEARNING, "learning"),
            (COLLECTION, "collection"),
            (STARTUP, "startup"),
        )
    },
}
MARKS = (SIMULATION, INFERENCE, TORCH, SLEEP, WARM_UP, INFERRED, FORWARD, LEARNING)
SWITCHES = (
    layout.CODE_STEP,
    layout.CODE_PROBE_ON,
    layout.CODE_PROBE_OFF,
    layout.CODE_WINDOW_ON,
    layout.CODE_WINDOW_OFF,
    layout.CODE_THREAD_END,
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7, 300 * MS]),  # the last is longer than a block is silent
        st.sampled_from(
            [f(n) for n in MARKS for f in (streams.begin, streams.end)] * 2 + [*SWITCHES]
        ),
        st.integers(0, 400 * MS),
    ),
    max_size=60,
)


def shard_of(index: int, events: list[tuple[int, int, int]]) -> Shard:
    """Rows as the recorder writes them: markers of the probe with CPU time and callbacks."""
    rows = [(0, layout.CODE_WINDOW_ON)] if index == 0 else []
    cpu_ns = 0
    for delta, code, value in events:
        rows.append((delta, code))
        if code in (layout.CODE_PROBE_ON, layout.CODE_PROBE_OFF):
            cpu_ns += value
            rows += [(0, layout.CODE_HIGH), (cpu_ns % 2**32, layout.CODE_CPU)]
            rows += [(0, layout.CODE_HIGH), (value % 100, layout.CODE_CALLBACKS)]
    deltas, codes = (np.array([row[k] for row in rows]) for k in (0, 1))
    path = Path(f"thread-{index:05d}.arrow")
    return Shard(path, deltas.astype(np.uint32), codes.astype(np.uint16), None)


def process_of(pid: int, threads: list[list[tuple[int, int, int]]]) -> Process:
    found = streams.process([(0, layout.CODE_WINDOW_ON)])
    found.start = {"pid": pid, "parent_pid": 0, "base_ns": 5 * pid, "mode": "full"}
    found.names = NAMES
    found.directory = Path(f"nowhere-{pid}")
    shards = [shard_of(index, events) for index, events in enumerate(threads)]
    vars(found)["threads"] = shards
    last = max((int(s.deltas[s.codes != layout.CODE_CPU].sum()) for s in shards), default=0)
    found.end = {"time_ns": found.base_ns + last + 3, "cpu_s": 0.0, "dropped": 0}
    return found


def ticks_of(process: Process, length_ns: int) -> dict[int, Ticks]:
    """Looks of equal length, in which threads ran and were ready for any time, or longer."""
    end_ns = int(process.end["time_ns"]) if process.end else 0
    edges = np.arange(0, end_ns + 2 * length_ns, length_ns)
    rng = np.random.default_rng(len(edges))
    found: dict[int, Ticks] = {}
    for source in process.sources:
        ran, ready = rng.integers(0, 2 * length_ns, (2, len(edges) - 1))
        begins = np.sort(rng.integers(0, end_ns + 1, 3 * len(edges)))
        off = Off(begins, rng.integers(0, length_ns, len(begins)))
        found[source.index] = Ticks(edges[:-1], edges[1:], np.minimum(ran, length_ns), ready, off)
    return found


def summary_of(processes: list[Process], monkeypatch: Any, piece: int, each: int) -> Summary:
    """With slices of about `each` rows."""
    with monkeypatch.context() as patch:
        plain = Source.timed_pieces
        patch.setattr(Source, "timed_pieces", lambda self, piece_rows: plain(self, piece))
        patch.setattr(slices, "PIECE_ROWS", piece)
        patch.setattr(slices.outline, "__defaults__", (each, None))
        return summarize(Session(Path("nowhere"), {"mode": "full"}, processes))


@pytest.mark.parametrize("tick_ns", [0, 50 * MS])
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(EVENTS, min_size=1, max_size=3), min_size=1, max_size=2),
    st.integers(1, 12),
)
def test_the_sum_of_the_slices_is_the_whole(
    tick_ns: int, threads: list[list[Any]], piece: int
) -> None:
    """Threads that come and go, blocks, phases, silences and gaps, cut after every few rows."""
    processes = [process_of(pid, each) for pid, each in enumerate(threads)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = {p.directory: ticks_of(p, tick_ns) if tick_ns else {} for p in processes}
        monkeypatch.setattr(timeline, "read_ticks", lambda process: found[process.directory])
        whole = summary_of(processes, monkeypatch, 1 << 15, 1 << 30)
        assert summary_of(processes, monkeypatch, piece, piece).to_json() == whole.to_json()


def test_slices_are_as_small_as_asked_for() -> None:
    """A hundred thousand rows in slices of two pieces at most, end to end."""
    events = [(1, streams.begin(TORCH) + row % 2, 0) for row in range(100_000)]
    process = process_of(1, [events])
    steps = list(slices_of(outline([process], 1 << 15)))
    edges = [(t.begin_ns, t.until_ns) for step in steps for t in step.timelines]
    assert len(edges) >= 3
    assert [end for _, end in edges[:-1]] == [begin for begin, _ in edges[1:]]
    assert max(len(t.threads[0].rows[1]) for s in steps for t in s.timelines) <= 3 << 15
    assert sum(len(t.threads[0].rows[1]) for s in steps for t in s.timelines) == 100_001


def test_what_is_made_ahead_comes_in_order_and_ends_with_its_error() -> None:
    def numbers() -> Iterator[int]:
        yield from range(1, 4)
        raise ValueError("no more")

    seen: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        seen.extend(slices._made_ahead(numbers()))
    assert seen == [1, 2, 3]
    begun = slices._made_ahead(numbers())
    assert next(begun) == 1
    begun.close()  # ends its thread
    assert not [each for each in threading.enumerate() if each.name.startswith("slices")]


def test_without_a_thread_the_same_is_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interpreter's end, or at a limit of the system, none can begin."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(slices.ThreadPoolExecutor, "submit", refuse)
    assert list(slices._made_ahead(iter([1, 2, 3]))) == [1, 2, 3]


def test_pieces_begin_with_timed_rows_and_lose_none() -> None:
    shard = shard_of(0, [(1, layout.CODE_PROBE_ON, 7)] * 50)
    pieces = list(Source(shard).pieces(4))
    assert len(pieces) > 10
    assert all(codes[0] not in (layout.CODE_HIGH, layout.CODE_CPU) for _, codes in pieces)
    assert np.concatenate([codes for _, codes in pieces]).tolist() == shard.codes.tolist()
    assert np.concatenate([deltas for deltas, _ in pieces]).tolist() == shard.deltas.tolist()
