"""Room for what many workers keep open: most systems give a program 1,024 files to begin with."""

from __future__ import annotations

import os
import resource

from redline.errors import ConfigError

_OF_EACH = 4 if hasattr(os, "eventfd") else 5  # its connection, two pipes, and a signal
_OF_A_START = 8  # what the worker that is being started is given, and the pipe of its process
_OF_THE_REST = 128  # what the run opens later: files, evaluations


def make_room_for(workers: int) -> None:
    """Let this process open as many files as so many workers need.

    The limit that a process may raise itself, the soft one, is raised where it is too low. It
    stays so, and workers have it, too.

    Raises:
        ConfigError: if the system does not allow as many; with the arithmetic.
    """
    needed = _open_now() + _OF_EACH * workers + _OF_A_START
    wanted = needed + _OF_THE_REST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard):
        wanted = max(needed, min(wanted, hard))
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:  # above the hard one, or above what the system has
        raise ConfigError(
            f"{workers:,} workers need {needed:,} open files ({_OF_EACH} for each), and this "
            f"process may open {soft:,} of at most {hard:,}. Use fewer workers: one per core is "
            f"usual. Or raise the limit, as with `ulimit -Hn {needed}` or LimitNOFILE= of systemd."
        ) from error


def _open_now() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # a container without it
        return 0
