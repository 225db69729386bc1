"""The returns of a trial's run, read while it goes on."""

from __future__ import annotations

from pathlib import Path

from redline.launch.trial_returns import TrialReturns


def test_rows_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    """Each look parsed the whole table of each trial, five times a second."""
    path = tmp_path / "progress.csv"
    returns = TrialReturns(tmp_path)
    assert returns.read() == []
    path.write_text("env_steps,sps,return_mean\n100,1,\n200,1,2.5\n")
    assert returns.read() == [(200, 2.5)]
    assert returns.read() == []
    with open(path, "a") as file:
        file.write("300,1,3.5\n400,1,nan\nodd,1,1\n500,1\n-1,1,1\n600,1,")
    assert returns.read() == [(200, 2.5), (300, 3.5)]
    with open(path, "a") as file:
        file.write("4.5\n")
    assert returns.read() == [(300, 3.5), (600, 4.5)]


def test_a_table_that_a_resume_has_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    returns = TrialReturns(tmp_path)
    path.write_text("env_steps,return_mean\n100,1.0\n200,2.0\n")
    assert returns.read() == [(100, 1.0), (200, 2.0)]
    path.write_text("env_steps,return_mean\n100,1.0\n")
    assert returns.read() == [(100, 1.0)]
    path.write_text("env_steps,return_mean\n100,1.0\n250,3.0\n")
    assert returns.read() == [(100, 1.0), (250, 3.0)]
