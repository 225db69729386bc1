"""The database of a sweep: what it keeps, and what is said of one that cannot be used."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from pathlib import Path

import pytest

from redline.errors import SweepStateError
from redline.launch import state as state_module
from redline.launch.run_process import write_order
from redline.launch.state import DATABASE, RUNS, LauncherLock, NewRun, Outcome, SweepState


def _runs(count: int) -> list[NewRun]:
    return [
        NewRun(
            name=f"run{i}",
            key=f"key{i}",
            algorithm="ppo",
            settings={"seed": i, "key": f"key{i}"},
            varies={},
        )
        for i in range(count)
    ]


def test_runs_are_added_once(tmp_path: Path) -> None:
    with SweepState(tmp_path, create=True) as state:
        assert state.add(_runs(2)) == 2
        assert state.add(_runs(3)) == 1
        assert state.counts() == {"queued": 3, "running": 0, "done": 0, "failed": 0}


def test_a_name_that_is_taken_gets_the_key_behind_it(tmp_path: Path) -> None:
    first = _runs(1)[0]
    second = NewRun(name="run0", key="other-key", algorithm="a2c", settings={}, varies={})
    with SweepState(tmp_path, create=True) as state:
        state.add([first, second])
        assert [run.name for run in state.runs()] == ["run0", "run0-other-ke"]


def test_a_directory_of_other_settings_is_not_taken_over(tmp_path: Path) -> None:
    """Where the database was lost, the run's process would go on with the other run in there."""
    write_order(tmp_path / RUNS / "run0", {"key": "key0"})
    other = NewRun(name="run0", key="other-key", algorithm="ppo", settings={}, varies={})
    with SweepState(tmp_path, create=True) as state:
        state.add([other, *_runs(1)])
        assert [run.name for run in state.runs()] == ["run0-other-ke", "run0"]


def test_a_run_that_fails_is_retried_after_the_others_and_keeps_every_attempt(
    tmp_path: Path,
) -> None:
    with SweepState(tmp_path, create=True) as state:
        state.add(_runs(2))
        run = state.next_queued()
        assert run is not None
        state.started(run, "0")
        failure = Outcome(exit_signal=9, error="ended by SIGKILL", traceback="the end of the log")
        assert state.ended(run.id, failure, retries=1) == "queued"
        following = state.next_queued()
        assert following is not None
        assert following.name == "run1"
        state.started(following, "0")
        state.ended(following.id, Outcome(result={"return_mean": 1.0}, exit_code=0), retries=1)
        again = state.next_queued()
        assert again is not None
        assert again.name == "run0"
        state.started(again, "0")
        assert state.ended(run.id, Outcome(exit_code=1, error="bad"), retries=1) == "failed"
        kept = state.attempts(run.id)
        assert [(a["number"], a["exit_signal"], a["exit_code"]) for a in kept] == [
            (1, 9, None),
            (2, None, 1),
        ]
        assert kept[0]["traceback"] == "the end of the log"
        assert state.requeue() == 1
        assert [run.state for run in state.runs()] == ["queued", "done"]


def test_a_run_that_was_stopped_is_queued_and_has_not_failed(tmp_path: Path) -> None:
    with SweepState(tmp_path, create=True) as state:
        state.add(_runs(1))
        run = state.next_queued()
        assert run is not None
        state.started(run, "0")
        assert state.ended(run.id, Outcome(exit_signal=15, stopped=True), retries=0) == "queued"
        assert state.runs()[0].failures == 0


def test_a_folder_without_a_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepStateError, match=r"holds no sweep: it has no sweep\.sqlite"):
        SweepState(tmp_path)


def test_a_damaged_database_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / DATABASE
    file.write_bytes(b"this is no database" * 100)
    with pytest.raises(SweepStateError, match="is damaged") as caught:
        SweepState(tmp_path)
    assert "is not lost" in str(caught.value)
    assert file.read_bytes() == b"this is no database" * 100


def test_a_database_of_another_version_is_named(tmp_path: Path) -> None:
    with SweepState(tmp_path, create=True) as state:
        state._db.execute("UPDATE meta SET value = '99' WHERE key = 'format_version'")
    with pytest.raises(SweepStateError, match="format_version=99"):
        SweepState(tmp_path)


def test_a_locked_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_BUSY_S", 0.05)
    with SweepState(tmp_path, create=True) as state:
        other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SweepStateError, match="is locked by another program"):
            state.add(_runs(1))
        other.execute("ROLLBACK")
        other.close()
        assert state.add(_runs(1)) == 1


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    with SweepState(tmp_path, create=True) as state:
        state.add(_runs(1))
        pages = state._db.execute("PRAGMA page_count").fetchone()[0]
        state._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SweepStateError, match="no room on the disk"):
            state.add(_runs(5000))
        assert state.counts()["queued"] == 1


def test_a_new_database_keeps_no_log_in_shared_memory(tmp_path: Path) -> None:
    """With one, a look from another machine saw an old state, or a damaged one."""
    with SweepState(tmp_path, create=True) as state:
        state.add(_runs(1))
        with SweepState(tmp_path) as other:
            assert other.counts()["queued"] == 1
        assert [path.name for path in tmp_path.iterdir()] == [DATABASE]


def _of_version_0_2(folder: Path) -> None:
    with SweepState(folder, create=True) as state:
        state._db.execute("PRAGMA journal_mode = WAL")
        state.add(_runs(2))


def test_a_database_of_version_0_2_is_gone_on_with(tmp_path: Path) -> None:
    _of_version_0_2(tmp_path)
    with SweepState(tmp_path) as state:
        assert state.add(_runs(3)) == 1
        assert state.counts()["queued"] == 3


def test_a_database_that_can_only_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite makes files beside one with a write-ahead log, which a read-only folder refuses."""
    folder = tmp_path / "a b%?#"
    _of_version_0_2(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with SweepState(folder) as state:
        assert state.counts()["queued"] == 2
        assert [path.name for path in folder.iterdir()] == [DATABASE]


def test_a_log_that_is_left_is_read_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its launcher wrote last stands only there."""
    _of_version_0_2(tmp_path)
    with SweepState(tmp_path) as launching:
        launching.add(_runs(3))
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with SweepState(tmp_path) as state:
            assert state.counts()["queued"] == 3


def test_the_launcher_of_another_user_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock may be read and not written: it was taken for nobody's."""
    opened = os.open

    def only_reading(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode)

    with LauncherLock(tmp_path):
        monkeypatch.setattr(os, "open", only_reading)
        assert state_module.launcher_is_alive(tmp_path)
    assert not state_module.launcher_is_alive(tmp_path)


def test_there_is_one_launcher(tmp_path: Path) -> None:
    with LauncherLock(tmp_path):
        assert state_module.launcher_is_alive(tmp_path)
        with pytest.raises(SweepStateError, match="has a launcher at work"), LauncherLock(tmp_path):
            pass
    assert not state_module.launcher_is_alive(tmp_path)


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher was at work there already, and for ever."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = r"\.launcher\.lock cannot be locked \(Function not implemented\).* or "
    with (
        pytest.raises(SweepStateError, match=f"{said}give another --out"),
        LauncherLock(tmp_path),
    ):
        pass
    with pytest.raises(SweepStateError, match=f"{said}look from another machine"):
        state_module.launcher_is_alive(tmp_path)
