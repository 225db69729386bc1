"""What each part of a program took, by its own clock."""

from __future__ import annotations

import time

from redline import profile

BUSY, WAITS = "busy", "waits"

_seconds: dict[str, float] = {}


def _off_cpu() -> float:
    """Grows while this thread does not run: to ask for what it waits for, it runs."""
    return time.perf_counter() - time.thread_time()


class clocked:  # noqa: N801  (used as a statement, like a function)
    """Measures a part."""

    def __init__(self, name: str, kind: str = BUSY) -> None:
        self._name = name
        self._clock = time.thread_time if kind == BUSY else _off_cpu

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        took = self._clock() - self._began
        _seconds[self._name] = _seconds.get(self._name, 0.0) + took


class timed(clocked):  # noqa: N801
    """Marks a part, and measures it."""

    def __init__(self, name: str, kind: str = BUSY) -> None:
        super().__init__(name, kind)
        self._mark = profile.operation(name)

    def __enter__(self) -> None:
        self._mark.__enter__()
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._mark.__exit__(None, None, None)


def so_far() -> dict[str, float]:
    """Seconds of each part, since `forget`."""
    return dict(_seconds)


def forget() -> None:
    """Begin anew."""
    _seconds.clear()
