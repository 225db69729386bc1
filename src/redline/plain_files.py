"""Reading a directory that may be a stranger's: only regular files, and none too large.

A run directory, a checkpoint or a saved replay may come from anybody. Whatever opens one goes
through this file:

- `refuse_special_files` looks at the whole tree first. A symbolic link could lead out of it, and a
  fifo, a device or a socket could hang its reader, so none of them may be there. Only the links
  of Weights & Biases may, in its own directory, where Redline opens nothing.
- `read_plain` and `read_json` open one file without following a link and without waiting, check
  that it is a regular file, and refuse it if it is larger than what may be read.
- `directory_handle` opens a directory without following a link, for names relative to it.
- `lock_within` takes a lock, or waits for it; `without_locks` says where there are none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from redline.errors import RunDirectoryError

CONFIG_LIMIT = 4 * 2**20
"""Bytes of a file of settings; the largest that Redline writes has some thousands."""
MANIFEST_LIMIT = 256 * 2**20
"""Bytes of a list of files or of a state as JSON: a replay of a terabyte needs 200 MB."""
ROW_LIMIT = 2**20
"""Bytes of a row of a table; a run with thousands of columns writes some ten thousand."""
_DEEPEST = 64  # nested directories; Redline makes 4, the tools that it calls some more
_LINKING = "wandb"  # directory of Weights & Biases, which links its newest run and logs in there
_CORE_LOG = ("logs", "debug-core.log")  # of each of its runs: a link to a log in the user's cache
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def refuse_special_files(root: Path) -> None:
    """Refuse a directory that holds anything but regular files and directories.

    `root` itself may be a link: the caller named it.

    Raises:
        RunDirectoryError: naming the first link, fifo, device or socket, and what to do.
    """
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # there is no directory to look through; who needs one says so
    except OSError as error:
        raise RunDirectoryError(f"{root} cannot be read: {error.strerror or error}.") from error
    try:
        _refuse_special(root, handle, ())
    finally:
        os.close(handle)


def _refuse_special(root: Path, handle: int, inside: tuple[str, ...]) -> None:
    if len(inside) > _DEEPEST:
        raise RunDirectoryError(
            f"{root.joinpath(*inside[:4])} is nested more than {_DEEPEST} directories deep, as no "
            f"run directory is. Remove it."
        )
    found: list[tuple[str, int]] = []
    with os.scandir(handle) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a run that goes on removes checkpoints
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
    for name, mode in found:
        if stat.S_ISDIR(mode):
            with _opened_below(root, handle, (*inside, name)) as below:
                if below is not None:
                    _refuse_special(root, below, (*inside, name))
        elif not stat.S_ISREG(mode):
            if stat.S_ISLNK(mode) and _is_of_wandb(handle, name, inside):
                continue
            _refuse(root.joinpath(*inside, name), mode)


@contextlib.contextmanager
def _opened_below(root: Path, handle: int, inside: tuple[str, ...]) -> Iterator[int | None]:
    """A directory below another one; None if it has been removed meanwhile."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        below = os.open(inside[-1], flags, dir_fd=handle)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        path = root.joinpath(*inside)
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        yield below
    finally:
        os.close(below)


def _is_of_wandb(handle: int, name: str, inside: tuple[str, ...]) -> bool:
    """Whether a link is one of those that Weights & Biases makes among its own files.

    All but one stay in their directory. Nothing opens the other one: W&B makes a new one, in a
    new directory, for each of its runs.
    """
    if inside[:1] == (_LINKING,):
        below = inside[1:]
    elif (inside[:1], inside[2:3]) == (("runs",), (_LINKING,)):
        below = inside[3:]  # of a run directory in the folder of a sweep
    else:
        return False
    if len(below) == 2 and (*below[1:], name) == _CORE_LOG:
        return True
    target = os.readlink(name, dir_fd=handle)
    return not os.path.isabs(target) and ".." not in Path(target).parts


def _refuse(path: Path, mode: int) -> None:
    kind = next((what for is_kind, what in _KINDS if is_kind(mode)), "no regular file")
    raise RunDirectoryError(
        f"{path} is {kind}. A run directory holds only files and directories: a link could lead "
        f"Redline to write or delete elsewhere. Put the files themselves in its place, or remove "
        f"it."
    )


@contextlib.contextmanager
def directory_handle(path: Path) -> Iterator[int]:
    """A descriptor of a directory, for names relative to it; its last part must be no link.

    Raises:
        OSError: if it is a link or no directory, or cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def open_plain(path: Path) -> int:
    """A descriptor of a regular file, to read; never waits, and follows no link.

    Raises:
        OSError: if it is none, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def read_plain(path: Path, limit: int) -> bytes:
    """The bytes of a regular file.

    Args:
        path: of the file.
        limit: bytes that it may have.

    Raises:
        OSError: if it is no regular file, or larger; with the arithmetic.
    """
    with open(open_plain(path), "rb") as file:
        require_size(file, limit)
        return file.read(limit)


def require_size(file: IO[bytes], limit: int) -> None:
    """Refuse an open file that is larger than what may be read of it.

    Raises:
        OSError: with the arithmetic.
    """
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise OSError(
            f"{file.name} has {size:,} bytes, and a file of its kind has at most {limit:,}"
        )


def read_row(file: IO[bytes]) -> bytes:
    """The next line of a table, with its end; empty at the end of the file.

    Raises:
        OSError: if it is longer than a row may be, as in a file of zeros.
    """
    line = file.readline(ROW_LIMIT)
    if len(line) == ROW_LIMIT and not line.endswith(b"\n"):
        raise OSError(f"a row has more than {ROW_LIMIT:,} bytes, which no table of a run has")
    return line


def read_json(path: Path, limit: int = CONFIG_LIMIT) -> Any:
    """What a JSON file holds.

    Args:
        path: of the file.
        limit: bytes that it may have.

    Raises:
        OSError: if it is no regular file, or larger than `limit`.
        ValueError: if it is no JSON, or JSON that no program of Redline's writes: nested
            thousands deep, or with numbers of thousands of digits.
    """
    data = read_plain(path, limit)
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def lock_within(descriptor: int, patience_s: float) -> None:
    """Hold a file for this process alone, once whoever holds it lets go.

    Args:
        descriptor: of the file; the lock lasts until it is closed.
        patience_s: how long to wait.

    Raises:
        BlockingIOError: if it is held for longer.
        OSError: at once, if the file system has no locks; see `without_locks`.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        # Before the attempt: after it this process may sleep while the other one lets go.
        is_late = time.monotonic() >= deadline_s
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_late:
                raise
            time.sleep(min(0.1, patience_s / 50))
        else:
            return


def without_locks(path: Path, error: OSError, otherwise: str = "give another --out") -> str:
    """What to say of a file system that refuses a lock, as Lustre does without `flock`.

    Args:
        path: that was to be locked.
        error: of the attempt.
        otherwise: what helps besides another mount.
    """
    return (
        f"{path} cannot be locked ({error.strerror or error}), so nothing keeps two processes "
        f"apart there: mount its file system with locks (Lustre with `flock`, NFS with its lock "
        f"service), or {otherwise}."
    )
