"""How far a sweep is said to be."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redline.launch.state import DATABASE, LauncherLock, NewRun, Outcome, SweepState
from redline.launch.status import status_of


def _sweep(folder: Path, done: list[dict[str, Any]], queued: int) -> None:
    """Runs that are done, with these results, and some that wait."""
    with SweepState(folder, create=True) as state:
        state.add(
            NewRun(name=f"run{i}", key=f"k{i}", algorithm="ppo", settings={}, varies={})
            for i in range(len(done) + queued)
        )
        for result in done:
            run = state.next_queued()
            assert run is not None
            state.started(run, "0")
            state.ended(run.id, Outcome(result=result, exit_code=0), retries=0)


def test_the_time_left_counts_all_attempts_of_the_runs_that_are_done(tmp_path: Path) -> None:
    """A run that was adopted, or went on from 95%, counted with the seconds of the last attempt.

    (100 + 300) / 2 = 200 s for each of 3 that wait, one at a time.
    """
    _sweep(tmp_path, [{"wall_time_s": 100.0}, {"wall_time_s": 300.0}], queued=3)
    with LauncherLock(tmp_path):
        assert status_of(tmp_path).time_left_s == 600.0


@pytest.mark.parametrize(
    ("result", "ended_s", "left_s"),
    [
        ({}, 1050.0, 50.0),  # of a version that kept no wall_time_s there
        ({"wall_time_s": "odd"}, 1050.0, 50.0),
        ({}, 900.0, 0.0),  # the clock was set back
    ],
)
def test_a_result_without_its_time_counts_by_the_clock(
    result: dict[str, Any], ended_s: float, left_s: float, tmp_path: Path
) -> None:
    _sweep(tmp_path, [result], queued=1)
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("UPDATE runs SET started_s = 1000.0, ended_s = ? WHERE id = 1", (ended_s,))
    database.close()
    with LauncherLock(tmp_path):
        assert status_of(tmp_path).time_left_s == left_s
