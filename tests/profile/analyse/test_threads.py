"""Each thread's own table, and counts that calibration blocks hide; worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.profile import layout
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.threads import blind_share, thread_rows
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import Name, Session
from redline.profile.report.text import render_text
from tests.profile import streams

MS = 1_000_000
LEADS = [
    (0, layout.CODE_WINDOW_ON),
    (10 * MS, streams.begin(streams.SIMULATION)),
    (40 * MS, streams.end(streams.SIMULATION)),
]
BESIDE = [
    (20 * MS, streams.begin(streams.INFERENCE)),
    (30 * MS, streams.begin(streams.TORCH)),
    (50 * MS, streams.end(streams.TORCH)),
    (60 * MS, streams.end(streams.INFERENCE)),
    (80 * MS, layout.CODE_THREAD_END),
]


def test_what_a_thread_does_beside_the_leading_one_is_its_own() -> None:
    """The cells hold the first thread alone: it never waits. Inference is in the other's table."""
    process = streams.process(LEADS, BESIDE, end_ns=100 * MS)
    session = Session(Path("nowhere"), {"mode": "light"}, [process])
    process.start |= {"mode": "light", "python": "3.12"}
    summary = summarize(session)
    assert {cell.operation for cell in summary.cells} == {"simulation", "other"}
    found = {(row.thread, row.operation, row.level): row.raw_s for row in summary.threads}
    assert found == {
        (0, "simulation", "python"): 0.03,
        (0, "other", "python"): 0.07,
        (1, "inference", "python"): 0.02,
        (1, "inference", "backend"): 0.02,
        (1, "other", "python"): 0.02,
    }
    text = render_text(summary)
    assert "thread   1: inference backend 0.020 s, inference python 0.020 s" in text
    assert thread_rows(build_timeline(streams.process(LEADS, end_ns=100 * MS))) == []


def test_calls_in_calibration_blocks_are_estimated() -> None:
    """A fifth of the time was not observed: 8 calls seen are 10 in all."""
    events = [(0, layout.CODE_WINDOW_ON)]
    for call in range(8):
        events += [
            (10 * call * MS, streams.begin(streams.TORCH)),
            ((10 * call + 1) * MS, streams.end(streams.TORCH)),
        ]
    events += [(80 * MS, layout.CODE_PROBE_OFF), (100 * MS, layout.CODE_PROBE_ON)]
    process = streams.process(events, end_ns=100 * MS)
    process.start |= {"mode": "full", "python": "3.12"}
    assert blind_share(build_timeline(process)) == pytest.approx(0.2)
    (row,) = summarize(Session(Path("nowhere"), {"mode": "full"}, [process])).functions
    assert (row.calls, row.total_s) == (8, 0.008)
    assert row.estimated_calls == pytest.approx(10)
    assert row.estimated_s == pytest.approx(0.010)


def test_rests_during_imports_hide_no_calls_of_what_comes_after() -> None:
    """Of imports to 40 ms a quarter is observed, of the 60 ms after them two thirds.

    The 4 calls seen after them are 6, the one that is seen in them is 4.
    """
    imports = 20
    events = [
        (0, layout.CODE_WINDOW_ON),
        (0, streams.begin(imports)),
        (2 * MS, streams.begin(streams.TORCH)),
        (3 * MS, streams.end(streams.TORCH)),
        (10 * MS, layout.CODE_PROBE_OFF),
        (40 * MS, layout.CODE_PROBE_ON),
        (40 * MS, streams.end(imports)),
    ]
    for call in range(4):
        events += [
            ((50 + call) * MS, streams.begin(streams.SLEEP)),
            ((50 + call) * MS + 1000, streams.end(streams.SLEEP)),
        ]
    events += [(80 * MS, layout.CODE_PROBE_OFF), (100 * MS, layout.CODE_PROBE_ON)]
    process = streams.process(events, end_ns=100 * MS)
    process.names = process.names | {imports: Name(imports, "operation", "imports", 0, None)}
    process.start |= {"mode": "full", "python": "3.12"}
    rows = summarize(Session(Path("nowhere"), {"mode": "full"}, [process])).functions
    found = {row.function: (row.calls, row.estimated_calls, row.estimated_s) for row in rows}
    assert found == {
        "torch.add": (1, pytest.approx(4.0), pytest.approx(0.004)),
        "time.sleep": (4, pytest.approx(6.0), pytest.approx(6e-6)),
    }
