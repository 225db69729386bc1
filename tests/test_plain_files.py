"""What may lie in a directory of a stranger's, and how its files are opened."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from redline import plain_files
from redline.errors import RunDirectoryError
from redline.plain_files import (
    lock_within,
    read_json,
    read_plain,
    refuse_special_files,
    without_locks,
)


def a_link(path: Path) -> None:
    path.symlink_to("/tmp")


def a_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("make", [a_link, a_dangling_link, a_fifo, a_socket])
@pytest.mark.parametrize("where", ["checkpoints", "a/b/c"])
def test_a_special_file_anywhere_is_refused_by_its_name(
    make: Callable[[Path], None], where: str, tmp_path: Path
) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises(RunDirectoryError, match=f"{where} is a (symbolic link|fifo|socket)"):
        refuse_special_files(tmp_path)


def test_plain_trees_and_a_root_that_is_a_link_pass(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "named").symlink_to(tmp_path / "run")
    refuse_special_files(tmp_path / "named")
    refuse_special_files(tmp_path / "missing")


@pytest.mark.parametrize("run", ["", "runs/x/"])
def test_wandb_may_link_among_its_own_files_only(run: str, tmp_path: Path) -> None:
    """It keeps `latest-run` and `debug.log` as links relative to its directory."""
    wandb = tmp_path / run / "wandb"
    (wandb / "run-1" / "logs").mkdir(parents=True)
    (wandb / "latest-run").symlink_to("run-1")
    (wandb / "debug.log").symlink_to("run-1/logs/debug.log")
    (wandb / "debug-internal.log").symlink_to("run-1/logs/debug-internal.log")
    refuse_special_files(tmp_path)
    for target in ("/etc", "../checkpoints", "run-1/../../.."):
        (wandb / "other").symlink_to(target)
        with pytest.raises(RunDirectoryError, match="wandb/other is a symbolic link"):
            refuse_special_files(tmp_path)
        (wandb / "other").unlink()


@pytest.mark.parametrize("run", ["", "runs/x/"])
def test_wandb_may_link_the_log_of_its_core(run: str, tmp_path: Path) -> None:
    """wandb 0.31: `logs/debug-core.log` of each W&B run leads into the user's cache."""
    logs = tmp_path / run / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "cache" / "core-debug.log")
    refuse_special_files(tmp_path)


@pytest.mark.parametrize(
    "where",
    [
        "logs/debug-core.log",
        "wandb",
        "wandb/debug-core.log",
        "wandb/logs/debug-core.log",
        "wandb/run-1/debug-core.log",
        "wandb/run-1/logs",
        "wandb/run-1/logs/debug.log",
        "wandb/run-1/files/config.yaml",
        "wandb/run-1/files/logs/debug-core.log",
        "checkpoints/x/wandb/run-1/logs/debug-core.log",
    ],
)
def test_the_name_of_that_log_opens_no_other_place(where: str, tmp_path: Path) -> None:
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / where).symlink_to("/etc/passwd")
    with pytest.raises(RunDirectoryError, match=f"{where} is a symbolic link"):
        refuse_special_files(tmp_path)


def test_a_file_is_opened_without_waiting_and_without_following(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_plain(tmp_path / "fifo", 10)
    (tmp_path / "file").write_text("secret")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        read_plain(tmp_path / "link", 10)
    assert read_plain(tmp_path / "file", 6) == b"secret"


def test_a_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    """60 GB that take no room on the disk would take them in memory."""
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 60 * 10**9)
    with pytest.raises(OSError, match=r"60,000,000,000 bytes, .* at most 4,194,304"):
        read_json(path)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, "9" * 5_000, "\x00", "\xff", ""], ids=repr
)
def test_json_that_nobody_writes_is_a_value_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"."):
        read_json(tmp_path / "config.json")


def test_a_directory_that_goes_while_one_looks_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on removes old checkpoints: between their listing and a look into them."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    opened = os.open

    def removing(path: str | Path, *args: int, **kwargs: int) -> int:
        if path in ("a", "b"):
            (tmp_path / str(path)).rmdir()
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", removing)
    refuse_special_files(tmp_path)
    assert not any(tmp_path.iterdir())


class Locking:
    """A lock with a clock that is set by hand: `answers` says who holds it, attempt by attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.attempts = 100.0, 0
        self.answers: Iterator[bool] = iter(())
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        lock = SimpleNamespace(LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB, flock=self._attempt)
        monkeypatch.setattr(plain_files, "time", clock)
        monkeypatch.setattr(plain_files, "fcntl", lock)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _attempt(self, descriptor: int, how: int) -> None:
        self.attempts += 1
        assert self.attempts < 1000, "no end of attempts"
        if next(self.answers):
            raise BlockingIOError


@pytest.fixture
def locking(monkeypatch: pytest.MonkeyPatch) -> Locking:
    return Locking(monkeypatch)


def test_a_lock_that_is_freed_while_its_taker_sleeps_is_taken(locking: Locking) -> None:
    """On a busy machine it lost its core for 5 s after the attempt, and gave up without another."""

    def answers() -> Iterator[bool]:
        locking.sleep(5.0)
        yield True
        yield False

    locking.answers = answers()
    lock_within(3, 0.5)
    assert locking.attempts == 2


def test_a_lock_that_is_held_is_waited_for_so_long_and_no_longer(locking: Locking) -> None:
    locking.answers = iter(lambda: True, None)
    with pytest.raises(BlockingIOError):
        lock_within(3, 0.5)
    assert 100.5 <= locking.now < 100.6


def test_who_has_no_patience_attempts_once(locking: Locking) -> None:
    locking.answers = iter(lambda: True, None)
    with pytest.raises(BlockingIOError):
        lock_within(3, 0.0)
    assert locking.attempts == 1


def test_a_file_system_without_locks_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its answers counted as "held by another process", to the end of the patience."""
    attempts: list[int] = []

    def refuse(descriptor: int, how: int) -> None:
        del how
        attempts.append(descriptor)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Function not implemented") as caught:
        lock_within(3, 3600.0)
    assert attempts == [3]
    assert without_locks(Path("/x/run"), caught.value) == (
        "/x/run cannot be locked (Function not implemented), so nothing keeps two processes apart "
        "there: mount its file system with locks (Lustre with `flock`, NFS with its lock "
        "service), or give another --out."
    )
