"""What a program reports of itself while it is recorded: its progress, name and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INTERVAL_NS = 500_000_000  # between two lines of progress; the first and last of a window are kept

__all__ = ["Said"]


class Said:
    """Passes on what is said, but of progress no more than two lines a second.

    Args:
        note: appends a line to the files of the process.
        now: the recorder's clock, ns.
    """

    def __init__(self, note: Callable[..., None], now: Callable[[], int]) -> None:
        self._note, self._now = note, now
        self._window = 0  # the number of the open one, from 1 on; 0: none is
        self._windows = 0
        self._latest: dict[str, Any] | None = None  # not written yet
        self._next_ns = 0

    def __call__(self, event: str, values: dict[str, Any]) -> None:
        """The program says this."""
        if event != "progress":
            self._note(event, **values)
        elif self._window:
            now_ns = self._now()
            self._latest = {"time_ns": now_ns, "window": self._window, **values}
            if now_ns >= self._next_ns:
                self._write()
                self._next_ns = now_ns + INTERVAL_NS

    def begin_window(self) -> None:
        """Recording begins."""
        self._windows += 1
        self._window, self._next_ns = self._windows, 0

    def end_window(self) -> None:
        """It ends: the last progress in it must be known."""
        self._write()
        self._window = 0

    def _write(self) -> None:
        if self._latest is not None:
            self._note("progress", **self._latest)
            self._latest = None
