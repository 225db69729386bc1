"""The ways out of a process that skip all clean-up: `os._exit`, and `os.exec*`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["Exits"]


class Exits:
    """Ends the recording before the process ends or becomes another program.

    Args:
        stop: ends the recording.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._pid = 0
        self._originals: dict[str, Any] = {}
        self._replacements: dict[str, Any] = {
            "_exit": self._exit,
            "execv": self._execv,
            "execve": self._execve,
        }

    def install(self) -> None:
        """Begin to watch the exits of this process, and of those forked from it."""
        self._originals = {name: getattr(os, name) for name in self._replacements}
        for name, replacement in self._replacements.items():
            setattr(os, name, replacement)
        self.forked()

    def forked(self) -> None:
        """It is this process that records."""
        self._pid = os.getpid()

    def remove(self) -> None:
        """Leave the functions as they were, unless somebody else has replaced them since."""
        for name, original in self._originals.items():
            if getattr(os, name) == self._replacements[name]:
                setattr(os, name, original)

    def _exit(self, status: int) -> None:
        try:
            self._end()
        finally:
            self._originals["_exit"](status)

    def _execv(self, path: Any, argv: Any) -> None:
        if _can_run(path):
            self._end()
        self._originals["execv"](path, argv)

    def _execve(self, path: Any, argv: Any, env: Any) -> None:
        if _can_run(path):
            self._end()
        self._originals["execve"](path, argv, env)

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._stop()


def _can_run(path: Any) -> bool:
    """Whether it will hardly fail: `os.execvp` tries one directory of PATH after the other."""
    return isinstance(path, int) or os.access(path, os.X_OK)
