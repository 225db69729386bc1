"""Starting a run on a place, and what becomes of one that cannot be started."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redline.errors import SweepStateError
from redline.launch.places import Places
from redline.launch.state import Outcome

AGAIN_S = 60.0
"""After which a machine that had no room for a process is asked again, if no run has ended."""

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_FULL_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def start(
    places: Places,
    run_id: int,
    run_dir: Path,
    order: Mapping[str, Any],
    place: str,
    *,
    others: bool,
    resume: str,
) -> Outcome | None:
    """Begin a run; the other ones go on, whatever keeps this one from starting.

    Args:
        places: where runs take place.
        run_id: of the run.
        run_dir: its directory.
        order: what its process is to do.
        place: that is free.
        others: whether other runs are under way, whose end makes room for a process.
        resume: the command that goes on.

    Returns:
        None, or how the attempt ended: `stopped` if the machine has no room for a process now.

    Raises:
        SweepStateError: if the disk is full, or if the machine has no room even for one run.
    """
    try:
        places.start(run_id, run_dir, order, place)
    except OSError as error:
        said = f"could not be started: {error}"
        if error.errno in _FULL_DISK:
            raise SweepStateError(
                f"{run_dir}: no room on the disk ({error.strerror}). Free some, then go on with: "
                f"{resume}"
            ) from error
        if error.errno not in _FULL_MACHINE:
            return Outcome(error=said)
        if not others:
            raise SweepStateError(
                f"{run_dir} {said}. The machine lets this user have no further process, file or "
                f"memory: end what holds them, then go on with: {resume}"
            ) from error
        return Outcome(error=said, stopped=True)
    return None
