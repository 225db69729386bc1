"""Files whose locks say that a process is at work; the system releases them however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from redline.errors import SweepStateError
from redline.plain_files import lock_within, without_locks

_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A folder may be a stranger's: no link is followed, and no fifo waited for."""


def take(path: Path, patience_s: float = 1.0) -> int | None:
    """Hold a file for this process alone.

    Args:
        path: of the file, which is made if there is none.
        patience_s: how long to wait for another process to let go.

    Returns:
        A descriptor to close in the end; None if another process goes on holding it.

    Raises:
        OSError: if the file cannot be made.
        SweepStateError: if its file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o644)
    try:
        lock_within(descriptor, patience_s)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise SweepStateError(without_locks(path, error)) from error
    return descriptor


def is_held(path: Path) -> bool:
    """Whether another process holds a file; without one nobody does.

    Raises:
        SweepStateError: if its file system has no locks, so that nobody knows.
    """
    try:
        # Only to read: another user's folder may be looked at, too.
        descriptor = os.open(path, os.O_RDONLY | _PLAIN)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise SweepStateError(without_locks(path, error, "look from another machine")) from error
    finally:
        os.close(descriptor)
    return False
