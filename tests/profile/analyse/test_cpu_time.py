"""CPU time in the windows of a recording; worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redline.profile import layout
from redline.profile.analyse.summary import summarize
from redline.profile.reader import Session, Shard, open_session
from redline.profile.report.text import render_text
from tests.profile import streams

MS = 1_000_000


def test_cpu_time_is_that_of_the_windows() -> None:
    """It used 20 ms to 20 ms, none to 40 ms, and from there on all the time to its end at 100 ms.

    The windows are 30 to 50 ms and 80 to 90: of the first half is used, of the second all.
    """
    events = [
        (30 * MS, layout.CODE_WINDOW_ON),
        (50 * MS, layout.CODE_WINDOW_OFF),
        (80 * MS, layout.CODE_WINDOW_ON),
        (90 * MS, layout.CODE_WINDOW_OFF),
    ]
    process = streams.process(events, end_ns=100 * MS)
    process.start |= {"mode": "light", "cpu_s": 1.0}
    process.end |= {"cpu_s": 1.08, "own_cpu_ns": 8 * MS, "recorded_own_cpu_ns": 3 * MS}
    rows = [(20 * MS, layout.CODE_BEAT), (1_020_000, layout.CODE_PROCESS_CPU)] * 2
    deltas, codes = np.array(rows).T
    vars(process)["monitor"] = Shard(
        Path("monitor.arrow"), deltas.astype(np.uint32), codes.astype(np.uint16), None
    )
    summary = summarize(Session(Path("nowhere"), {"mode": "light"}, [process]))
    (row,) = summary.processes
    assert (row.wall_s, row.cpu_s) == pytest.approx((0.03, 0.08))
    assert (row.recorded_cpu_s, row.recorded_profiler_cpu_s) == pytest.approx((0.02, 0.003))
    assert row.profiler_cpu_s == pytest.approx(0.008)
    said = "0.030 s recorded, 0.020 s CPU (0.003 s of it the profiler's own)"
    assert said in render_text(summary)


def test_the_profilers_own_time_before_a_window_is_not_recorded(profiled: Any) -> None:
    """It waits for its window in vain; a recording without delay has all in one."""
    profiled.run("sum(range(10**6))", mode="light", delay_s=1e6)
    (process,) = open_session(profiled.session).processes
    assert process.own_cpu_s > process.recorded_own_cpu_s == 0
    profiled.run("sum(range(10**6))", mode="light")
    (process,) = open_session(profiled.session).processes
    assert process.own_cpu_s >= process.recorded_own_cpu_s > 0
