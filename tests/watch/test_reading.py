"""What is read of a run that goes on, was killed, or is a stranger's."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from redline.errors import RunDirectoryError
from redline.train.progress.writers import CsvWriter
from redline.train.runs.summary import RunSummary, summarize_run
from redline.watch import page
from redline.watch.reading import FolderReader, RunReader
from tests.watch.runs import HEADER, line, write_run

FIRST = (100, 1.0, 100.0, 20.0, 2.0, "")
SECOND = (300, 2.0, 200.0, 50.0, 5.0, 60.0)


def test_a_run_is_read_row_by_row_as_it_goes_on(tmp_path: Path) -> None:
    """A half-written row is left for the next reading, in whatever piece it comes."""
    path = write_run(tmp_path / "run", [FIRST])
    reader = RunReader(path, clock=lambda: (path / "progress.csv").stat().st_mtime + 5.0)
    with open(path / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        view = reader.read()
        assert (view.summary.state, view.progress, view.age_s) == ("running", 0.1, 5.0)
        assert (view.returns, view.evaluations) == ([(100, 20.0)], [])
        assert view.time_left_s == (1000 - 100) / 100.0
        text = line(SECOND)
        with open(path / "progress.csv", "a") as file:
            for piece in (text[:7], text[7:-1], text[-1:]):
                assert reader.read().returns == [(100, 20.0)]
                file.write(piece)
                file.flush()
        view = reader.read()
    assert view.returns == [(100, 20.0), (300, 50.0)]
    assert view.evaluations == [(300, 60.0)]
    assert view.newest["sps"] == 200.0
    assert reader.read().summary.state == "killed"


def test_a_file_that_was_cut_or_written_again_is_read_anew(tmp_path: Path) -> None:
    """Resuming cuts rows off; a column that joins rewrites the file under a new header."""
    path = write_run(tmp_path / "run", [FIRST, SECOND])
    reader = RunReader(path)
    assert len(reader.read().returns) == 2
    writer = CsvWriter(path / "progress.csv", HEADER, 1)
    assert reader.read().returns == [(100, 20.0)]
    values = dict(zip(HEADER, (300, 2.5, 150.0, 40.0, 1.0, 45.0), strict=True))
    writer.write(values)
    assert reader.read().returns == [(100, 20.0), (300, 40.0)]
    writer.set_columns((*HEADER, "success_rate"))
    writer.write({**values, "env_steps": 400, "success_rate": 0.5})
    writer.close()
    view = reader.read()
    assert view.returns == [(100, 20.0), (300, 40.0), (400, 40.0)]
    assert view.newest["success_rate"] == 0.5
    (path / "progress.csv").unlink()
    assert (reader.read().returns, reader.read().age_s) == ([], None)


def test_damaged_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    torn = ("200", "1.5")
    strange = (250, "one", 1.0, 1.0, 1.0, 1.0)
    endless = (260, 1.8, "inf", "nan", 1.0, "-inf")
    view = RunReader(write_run(tmp_path / "run", [FIRST, torn, strange, endless, SECOND])).read()
    assert view.damaged_rows == 2
    assert view.returns == [(100, 20.0), (300, 50.0)]
    assert view.evaluations == [(300, 60.0)]


def test_shares_are_weighted_by_the_time_of_their_rows(tmp_path: Path) -> None:
    """1 s with 90% learning and 3 s with 10% of it: (0.9 + 0.3) / 4 = 30%."""
    header = ("env_steps", "wall_time_s", "time_share/simulation", "time_share/learning")
    rows = [(100, 1.0, 0.1, 0.9), (200, 4.0, 0.9, 0.1)]
    view = RunReader(write_run(tmp_path / "run", rows, header=header)).read()
    assert list(view.shares) == ["simulation", "learning"]
    assert view.shares["learning"] == pytest.approx(0.3)
    assert sum(view.shares.values()) == pytest.approx(1.0)


def test_files_are_found_but_no_links(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [FIRST])
    for name in ("videos/old.mp4", "videos/new.gif", "videos/notes.txt", "profile/report-1.html"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    os.utime(path / "videos/old.mp4", (1, 1))
    (path / "checkpoints/best/step_000000000300").mkdir(parents=True)
    reader = RunReader(path)
    (path / "videos/later.mp4").symlink_to("/etc/passwd")
    view = reader.read()
    assert [video.name for video in view.videos] == ["new.gif", "old.mp4"]
    assert view.best == path / "checkpoints/best/step_000000000300"
    assert view.report == path / "profile/report-1.html"
    (path / "videos").rename(tmp_path / "elsewhere")
    (path / "videos").symlink_to(tmp_path / "elsewhere")
    assert reader.read().videos == ()
    with pytest.raises(RunDirectoryError, match=r"videos is a symbolic link"):
        RunReader(path)


def test_nothing_in_the_directory_changes(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [FIRST, SECOND], end={"state": "complete"})
    (path / ".lock").touch()
    before = {each: (each.stat().st_mtime_ns, each.stat().st_size) for each in path.rglob("*")}
    path.chmod(0o555)
    try:
        assert RunReader(path).read().summary.state == "complete"
    finally:
        path.chmod(0o755)
    after = {each: (each.stat().st_mtime_ns, each.stat().st_size) for each in path.rglob("*")}
    assert after == before


def test_a_folder_lists_its_runs_and_leaves_out_what_is_none(tmp_path: Path) -> None:
    write_run(tmp_path / "b" / "two", [FIRST, SECOND], end={"state": "failed", "reason": "X: y"})
    write_run(tmp_path / "a-one", [FIRST])
    write_run(tmp_path / "c", [FIRST], total_env_steps=10**400)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").symlink_to(tmp_path / "a-one" / "config.json")
    runs = FolderReader(tmp_path).read()
    assert [(Path(run.path).name, run.state, run.sps) for run in runs] == [
        ("a-one", "killed", 100.0),
        ("two", "failed", 200.0),
    ]
    with pytest.raises(RunDirectoryError, match="is no folder"):
        FolderReader(tmp_path / "nowhere").read()


def test_of_a_folder_only_what_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, an end, and a process that takes or leaves the lock are changes."""
    paths = [write_run(tmp_path / name, [FIRST]) for name in "abc"]
    (paths[1] / ".lock").touch()
    read: list[str] = []

    def noted(path: Path) -> RunSummary | None:
        read.append(path.name)
        return summarize_run(path)

    monkeypatch.setattr("redline.watch.reading.summarize_run", noted)
    reader = FolderReader(tmp_path)
    assert len(reader.read()) == 3
    with open(paths[0] / "progress.csv", "a") as file, open(paths[1] / ".lock", "rb") as lock:
        file.write(line(SECOND))
        file.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = reader.read()
    assert [(run.env_steps, run.state) for run in runs] == [
        (300, "killed"),
        (100, "running"),
        (100, "killed"),
    ]
    assert [run.state for run in reader.read()] == ["killed"] * 3
    assert read == ["a", "b", "c", "a", "b", "b"]
    assert FolderReader(tmp_path).read(lambda: len(read) > 6) == runs[:1]


def test_a_strangers_numbers_and_names_break_no_page(tmp_path: Path) -> None:
    """A negative count asked for a bar of 40 terabytes; a number for a name ended the page."""
    run = write_run(
        tmp_path / "run", [(-1e12, 1, 1, 1, 1, "")], end={"state": "failed", "reason": 7},
        name=5, total_env_steps=1,
    )  # fmt: skip
    view = RunReader(run).read()
    assert view.progress == 0.0
    assert any("7" in line for line in page.head(view, 80))
    assert page.name(view.summary) == "5"


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"config\.json is missing, damaged"):
        RunReader(tmp_path).read()
