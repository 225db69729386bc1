"""Files whose locks say that a process is at work; the system releases them however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from redline.plain_files import lock_within

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
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o644)
    try:
        lock_within(descriptor, patience_s)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether another process holds a file; without one nobody does."""
    descriptor = -1
    try:
        # Only to read: another user's folder may be looked at, too.
        descriptor = os.open(path, os.O_RDONLY | _PLAIN)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return descriptor >= 0
    finally:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return False
