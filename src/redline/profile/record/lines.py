"""Look at the Python stack of the main thread now and then, for the hottest functions and lines.

The work is done in C (`csrc/stacks.c`). It costs some microseconds a look, in the program's own
thread, and reads whole Python stacks; the `sampler` instead reads native ones, which say levels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redline.errors import ProfileError
from redline.profile import layout

LINES_HZ = 100.0

__all__ = ["LINES_HZ", "Lines"]


class Lines:
    """The looks at one process; paused at first.

    Args:
        directory: of the process's files.
        base_ns: what its times count from.
        hz: how often to look, on average.

    Raises:
        ProfileError: if the file cannot be written.
        ImportError: if the C extension was not built.
    """

    def __init__(self, directory: Path, base_ns: int, hz: float = LINES_HZ) -> None:
        from redline.profile import _stacks

        self._native: Any = _stacks
        try:
            self._native.start(str(directory / layout.STACKS), base_ns, round(1e9 / hz))
        except OSError as error:
            raise ProfileError(
                f"cannot write {layout.STACKS}: {error}. Profile with --no-lines"
            ) from error

    def pause(self) -> None:
        """No thread from here on."""
        self._native.pause()

    def resume(self) -> None:
        """Look."""
        self._native.resume()

    def abandon(self) -> None:
        """In a forked child: what was seen is the parent's."""
        self._native.abandon()

    def stop(self) -> dict[str, Any]:
        """End; how often it looked, and how many lines, told apart by their callers, it saw."""
        return self._native.stop() or {}
