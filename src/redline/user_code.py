"""Code of the user's: what is, and what would end the program in the middle of Redline's work.

`sys.exit()` in a module, a callback or a network would end a run with status 0, as if it were
complete. Here it becomes an error.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from redline.errors import RedlineError

_OWN = ("redline", "tyro")  # which end the program on purpose: after help, or a profiled window
_PASSED_ON = ("argparse", "_sitebuiltins")  # what counts is who called them


def is_a_users(thing: Any) -> bool:
    """Whether its class was defined outside of Redline."""
    return not type(thing).__module__.startswith("redline.")


def exit_place(error: SystemExit) -> str | None:
    """Where code of the user's called `sys.exit`, as file:line; None if Redline did."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _OWN:
            return None
        if package not in _PASSED_ON:
            return f"{frame.f_code.co_filename}:{line}"
    return None


@contextlib.contextmanager
def may_not_exit(what: str, kind: type[RedlineError] = RedlineError) -> Iterator[None]:
    """Turn `sys.exit` of the user's code into an error.

    Args:
        what: the code that is called here, to begin the message with.
        kind: of the error.

    Raises:
        RedlineError: of that kind, with the place.
    """
    try:
        yield
    except SystemExit as error:
        place = exit_place(error)
        if place is None:
            raise
        raise kind(exit_message(what, error, place)) from error


def exit_message(what: str, error: SystemExit, place: str) -> str:
    """What to say of an exit, with the place that `exit_place` found."""
    return (
        f"{what} called sys.exit({error.code!r}) at {place}, which would have ended the program as "
        f"if its work were complete. Raise an error of another kind there."
    )
