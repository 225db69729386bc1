"""What full mode costs whatever the blocks say: taken out of a session that none correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.profile import layout
from redline.profile.advise.iteration import _bounds
from redline.profile.analyse.correction import prior_of
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.reader import Process, Session
from redline.profile.report.text import render_text
from tests.profile import streams

MS = 1_000_000


def process_of(own_s: float, python: str = "3.13.0", mode: str = "full") -> Process:
    """100 ms of Python in one mark, and no block without the probe."""
    events = [
        (0, layout.CODE_WINDOW_ON),
        (0, streams.begin(streams.INFERENCE)),
        (100 * MS, streams.end(streams.INFERENCE)),
    ]
    process = streams.process(events, end_ns=100 * MS)
    process.start |= {"mode": mode, "python": python}
    own_ns = round(own_s * 1e9)
    process.end |= {"cpu_s": 0.1, "own_cpu_ns": own_ns}
    return process


def summary_of(python: str, *, mode: str = "full", cpus: int = 4, own_s: float = 0.0) -> Summary:
    process = process_of(own_s, python, mode)
    return summarize(Session(Path("nowhere"), {"mode": mode, "cpus": cpus}, [process]))


def test_what_python_3_12_loses_is_taken_out() -> None:
    lost = prior_of(["3.12.1"])
    summary = summary_of("3.12.1")
    (cell,) = summary.cells
    assert cell.corrected_s == pytest.approx(0.1 * (1 - lost.lasting))
    # 1.96 standard deviations of what is lost to the one side; nothing to the other.
    least = 0.1 * (1 - lost.lasting - 1.96 * lost.lasting_error)
    assert cell.ci_low_s <= least * (1 + 1e-9)
    assert cell.ci_high_s == pytest.approx(0.1)
    (overhead,) = summary.overhead
    assert overhead.lasting_s == pytest.approx(0.1 * lost.lasting)
    assert "0.001 s of Python taken out" in render_text(summary)
    # Blocks did not correct it: what is likely is the middle of what it may be.
    assert _bounds(summary)[0](cell) == pytest.approx((cell.ci_low_s + cell.ci_high_s) / 2)


@pytest.mark.parametrize(("python", "mode"), [("3.13.0", "full"), ("3.12.1", "light")])
def test_elsewhere_nothing_is(python: str, mode: str) -> None:
    (cell,) = summary_of(python, mode=mode).cells
    assert cell.corrected_s == cell.raw_s == pytest.approx(0.1)


def test_the_profilers_threads_are_taken_out_of_a_shared_core() -> None:
    """5 of 100 ms were theirs; on two cores they cost the program none of its own."""
    summary = summary_of("3.13.0", cpus=1, own_s=0.005)
    (cell,) = summary.cells
    assert cell.corrected_s == pytest.approx(0.095)
    assert summary.overhead[0].threads_s == pytest.approx(0.005)
    assert "0.005 s taken out of the times above: the profiler's own threads" in render_text(
        summary
    )
    (cell,) = summary_of("3.13.0", cpus=2, own_s=0.005).cells
    assert cell.corrected_s == pytest.approx(0.1)


def test_of_the_profilers_threads_only_what_they_took_in_windows_is_taken_out() -> None:
    """They took 50 ms, 2 of them while it was recorded: of a program with a late window."""
    process = process_of(0.05)
    process.end |= {"recorded_own_cpu_ns": 2 * MS}
    (cell,) = summarize(Session(Path("nowhere"), {"mode": "full", "cpus": 1}, [process])).cells
    assert cell.corrected_s == pytest.approx(0.098)
