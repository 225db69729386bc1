"""Counters of the processor and the kernel, by operation: which, and why others are absent.

`csrc/counters.c` reads those of each recorded thread whenever its operation changes. A machine may
have no such counters, as most virtual ones, or not let a program read them; then what there is goes
on, and the reason of the rest is kept.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from redline.profile import _native

HARDWARE, SOFTWARE = 0, 1  # types of perf_event_open

__all__ = ["COUNTERS", "Counter", "Counters"]


class Counter(NamedTuple):
    """A counter as perf_event_open names it."""

    name: str
    type: int
    config: int
    may_be_user_only: bool = True  # False: the kernel alone counts these


COUNTERS = (
    Counter("instructions", HARDWARE, 1),
    Counter("cycles", HARDWARE, 0),
    Counter("cache misses", HARDWARE, 3),
    Counter("branch misses", HARDWARE, 5),
    Counter("CPU ns", SOFTWARE, 1),
    Counter("page faults", SOFTWARE, 2),
    Counter("context switches", SOFTWARE, 3, may_be_user_only=False),
    Counter("core changes", SOFTWARE, 4, may_be_user_only=False),
)

Attempt = Callable[[int, int, bool], int]


class Counters:
    """Those of a process that can be read here.

    Args:
        attempt: tries one: type, config and whether only the program's own code is counted; 0, or
            the errno of the refusal.
    """

    def __init__(self, attempt: Attempt = _native.try_counter) -> None:
        self.names: list[str] = []
        self._refused: dict[int, list[Counter]] = {}
        wanted: list[tuple[int, int, bool]] = []
        for counter in COUNTERS:
            user_only = counter.type == HARDWARE  # the kernel's own is often not allowed
            error = attempt(counter.type, counter.config, user_only)
            if error and not user_only and counter.may_be_user_only:
                user_only, error = True, attempt(counter.type, counter.config, True)
            if error:
                self._refused.setdefault(error, []).append(counter)
            else:
                self.names.append(counter.name)
                wanted.append((counter.type, counter.config, user_only))
        _native.set_counters(wanted)

    @property
    def absent(self) -> str:
        """Why some cannot be read, in a sentence or two; "" where all can be."""
        return ". ".join(
            f"no counts of {', '.join(counter.name for counter in counters)}: {_reason(number)}"
            for number, counters in self._refused.items()
        )

    def counted(self) -> dict[str, Any]:
        """What was counted so far, for the files of the process: a row for each operation's id."""
        found = _native.counts()
        return {
            "names": self.names,
            "absent": self.absent,
            "counts": {str(number): list(values) for number, values in found.items()},
        }

    def stop(self) -> None:
        """Of threads that are recorded from now on nothing is counted."""
        _native.set_counters([])


def _reason(number: int) -> str:
    if sys.platform != "linux":
        return "only Linux has them"
    if number in (errno.EACCES, errno.EPERM):
        return (
            "the system does not permit it. Let an administrator set kernel.perf_event_paranoid "
            "to 2 or less, or start the container with CAP_PERFMON"
        )
    if number in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS):
        return "this machine has none, as most virtual machines"
    return os.strerror(number)
