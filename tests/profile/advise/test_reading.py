"""One reading for everything that a report shows, against a reading for each of its parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ProfileError
from redline.profile.advise import iteration
from redline.profile.advise.iteration import read_iteration
from redline.profile.advise.reading import find_iteration, read_session, render_page
from redline.profile.analyse import slices
from redline.profile.analyse.summary import summarize
from redline.profile.read.shards import Source
from redline.profile.reader import open_session
from redline.profile.report.page_data import page_data
from redline.profile.report.text import render_text

PROGRAM = """
import os, mujoco, torch
from redline import profile
if os.fork() == 0:
    with profile.operation("learning"):
        torch.spin(20_000_000)
    raise SystemExit
for i in range(60):
    with profile.phase("warm-up" if i < 10 else "main"):
        with profile.operation("simulation"):
            mujoco.spin(1_000_000)
        if i >= 20:
            with profile.operation("learning"):
                torch.call(lambda: torch.spin(1_000_000))
"""


@pytest.fixture
def session(profiled: Any) -> Path:
    profiled.run(PROGRAM)
    return profiled.session


@pytest.mark.parametrize("rows", [20, pytest.param(slices.SLICE_ROWS, id="usual")])
def test_one_reading_equals_one_for_each_part(
    session: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and in slices of some rows: calls and marks then last from one into the next."""
    summary = summarize(session)
    data = page_data(open_session(session), summary)
    plain = Source.timed_pieces
    monkeypatch.setattr(Source, "timed_pieces", lambda self, piece_rows: plain(self, rows // 2))
    monkeypatch.setattr(slices, "PIECE_ROWS", rows // 2)
    monkeypatch.setattr(slices.outline, "__defaults__", (rows, None))
    reading = read_session(open_session(session))
    page, step = render_page(reading)
    assert step is not None
    assert reading.summary.to_json() == {**summary.to_json(), "shares": []}
    assert json.dumps(asdict(step)) == json.dumps(asdict(read_iteration(session)))
    again = find_iteration(reading)
    assert again is not None
    assert json.dumps(asdict(step)) == json.dumps(asdict(again))
    text = page.split('type="application/json">', 1)[1].split("</script>", 1)[0]
    shown = json.loads(text)
    assert shown.pop("advice")["env_steps"] == step.env_steps
    assert shown == json.loads(json.dumps(data))


def test_a_learner_that_its_entries_did_not_tell_is_walked_through_alone(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = json.dumps(asdict(read_iteration(session)))
    monkeypatch.setattr(iteration, "learners", lambda entries: [])
    assert json.dumps(asdict(read_iteration(session))) == known


def test_a_program_that_learns_and_steps_nothing_has_a_report(profiled: Any) -> None:
    """Its environment was not recognized, or it has none: advice says so, reports do without."""
    profiled.run(
        """
from redline import profile
for _ in range(50):
    with profile.operation("learning"):
        sum(range(1000))
"""
    )
    reading = read_session(open_session(profiled.session))
    page, step = render_page(reading)
    assert step is None
    assert "learning" in page
    assert "learning" in render_text(reading.summary, find_iteration(reading))
    with pytest.raises(ProfileError, match="holds no env step"):
        read_iteration(profiled.session)


def test_env_steps_without_time_are_no_iteration(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a damaged session: the report does without the opening, advice says why."""
    monkeypatch.setattr(iteration, "_total", lambda table, counts: iteration.Time(0.0))
    reading = read_session(open_session(session))
    assert find_iteration(reading) is None
    assert "What to change" not in render_text(reading.summary, None)
    with pytest.raises(ProfileError, match="no time that they took"):
        read_iteration(session)
