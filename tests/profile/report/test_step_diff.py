"""Two sessions per step: worked by hand, and from events at known times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from redline.errors import ProfileError
from redline.profile import layout
from redline.profile.advise.iteration import Part, Time
from redline.profile.advise.per_step import PerStep, read_per_step
from redline.profile.analyse.summary import summarize
from redline.profile.reader import Session
from redline.profile.report.diff import diff_steps, render_step_diff
from redline.profile.report.text import render_text
from tests.profile import streams


def per_step(unit: str = "env step", **parts: tuple[float, float]) -> PerStep:
    times = {name: Time(*each) for name, each in parts.items()}
    total = sum(times.values(), Time(0.0))
    return PerStep(unit, "train.py", 7, 1000, total, {n: Part(n, {}, t) for n, t in times.items()})


def test_a_change_is_significant_where_its_interval_leaves_out_0() -> None:
    """Half widths add as squares: 3 and 4 make 5, so 6 is a change and 4 is noise."""
    before = per_step(learning=(100.0, 3.0), simulation=(50.0, 3.0))
    after = per_step(learning=(106.0, 4.0), simulation=(46.0, 4.0), logging=(2.0, 0.5))
    rows = {row.operation: row for row in diff_steps(before, after)}
    assert list(rows) == ["all", "learning", "simulation", "logging"]
    assert (rows["learning"].change_us, rows["learning"].half_us) == (6.0, 5.0)
    assert rows["learning"].significant
    assert (rows["simulation"].change_us, rows["simulation"].half_us) == (-4.0, 5.0)
    assert not rows["simulation"].significant
    assert rows["logging"].significant
    text = render_step_diff(before, after)
    assert text.startswith("per env step in the steady state, us")
    noise = [line.split()[0] for line in text.splitlines() if line.endswith("  noise")]
    assert noise == ["all", "simulation"]
    assert "new" in next(line for line in text.splitlines() if line.startswith("logging"))


def test_across_modes_only_what_both_know_is_compared() -> None:
    """Light mode sees no inference: 30 of A's 100 us, and 70 of B's 105 are in no operation."""
    before = per_step(simulation=(30.0, 1.0), inference=(60.0, 3.0), other=(10.0, 4.0))
    after = per_step(simulation=(35.0, 1.0), other=(70.0, 2.0))
    before = dataclasses.replace(before, inferred=frozenset({"inference", "forward"}))
    after = dataclasses.replace(after, mode="light")
    rows = {row.operation: (row.before, row.after) for row in diff_steps(before, after)}
    assert rows == {
        "all": (before.total, after.total),
        "simulation": (Time(30.0, 1.0), Time(35.0, 1.0)),
        "all else": (Time(70.0, 5.0), Time(70.0, 2.0)),
    }
    text = render_step_diff(before, after)
    assert text.startswith("note: A was recorded in mode full, B in mode light.")
    assert "note" not in render_step_diff(before, before)


def test_steps_of_other_kinds_are_not_compared() -> None:
    text = render_step_diff(per_step(a=(1.0, 0.1)), per_step("step", a=(1.0, 0.1)))
    assert "not comparable" in text


def session_of(mode: str, steps: int) -> Session:
    """Steps of 100 us: 30 of them inference, the rest in no operation."""
    events = [(0, layout.CODE_WINDOW_ON)]
    for step in range(steps):
        at = 100_000 * step
        events += [
            (at + 10_000, streams.begin(streams.INFERENCE)),
            (at + 40_000, streams.end(streams.INFERENCE)),
            (at + 100_000, layout.CODE_STEP),
        ]
    process = streams.process(events, end_ns=100_000 * steps)
    process.start |= {"mode": mode, "python": "3.12.1"}
    return Session(Path("nowhere"), {"mode": mode}, [process])


def test_steps_that_the_program_counts() -> None:
    """The first twentieth is start-up; every stretch takes the same, so nothing is uncertain."""
    found = read_per_step(session_of("light", 101))
    assert (found.unit, found.pid, found.steps) == ("step", 1, 95)
    assert found.total.us == pytest.approx(100.0, rel=1e-6)
    assert found.parts["inference"].time.us == pytest.approx(30.0, rel=1e-6)
    assert found.parts["other"].time.us == pytest.approx(70.0, rel=1e-6)
    assert found.total.half_us == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ProfileError, match="neither env steps nor 40 steps"):
        read_per_step(session_of("light", 39))


def test_levels_that_are_not_known_are_not_shown() -> None:
    """Light mode does not see native calls: what runs is neither python nor backend for certain."""
    light = render_text(summarize(session_of("light", 41)))
    (row,) = [line for line in light.splitlines() if line.strip().startswith("inference")]
    assert row.split()[-3:] == ["-", "-", "-"]
    full = render_text(summarize(session_of("full", 41)))
    (row,) = [line for line in full.splitlines() if line.strip().startswith("inference")]
    assert row.split()[-1] == "0.001"
