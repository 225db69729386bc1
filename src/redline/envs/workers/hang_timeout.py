"""How long a worker may make no progress before it counts as hung."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

_HEARTBEAT_CHECK_S = 0.5
_STOPPED_S = 1.0  # later than this, this process itself was not running


class HangTimeout:
    """When each worker was last known to make progress, and which have hung since.

    Args:
        workers: their numbers.
        timeout_s: how long one may make no progress.
        heartbeat: worker -> a number that changes with its progress; None: only a reply counts.
        limit_s: how long they have altogether.
    """

    def __init__(
        self,
        workers: Iterable[int],
        timeout_s: float,
        heartbeat: Callable[[int], int] | None,
        limit_s: float = math.inf,
    ) -> None:
        self._timeout_s, self._heartbeat = timeout_s, heartbeat
        self._end = time.monotonic() + limit_s
        self._seen = dict.fromkeys(workers, time.monotonic())
        self._due = math.inf
        self._beats = {index: heartbeat(index) for index in self._seen} if heartbeat else {}

    def next_check_s(self, waiting: Iterable[int]) -> float:
        """How long to wait for a reply before looking again."""
        begin = min(self._seen[index] for index in waiting)
        now = time.monotonic()
        left = min(begin + self._timeout_s, self._end) - now
        if self._heartbeat:
            left = min(left, _HEARTBEAT_CHECK_S)
        self._due = now + max(0.0, left)
        return left

    def hung(self, waiting: Iterable[int]) -> list[int]:
        """Those of `waiting` that made no progress for the whole time."""
        now = time.monotonic()
        late_s = now - self._due
        if late_s > _STOPPED_S:
            # The whole program was stopped (Ctrl-Z, a suspended machine): nobody's fault.
            self._due = math.inf
            self._end += late_s
            self._seen = {index: seen + late_s for index, seen in self._seen.items()}
        for index in waiting:
            if self._heartbeat and (beat := self._heartbeat(index)) != self._beats[index]:
                self._beats[index], self._seen[index] = beat, now
        if now >= self._end:
            return list(waiting)
        return [index for index in waiting if now - self._seen[index] >= self._timeout_s]

    def idle_s(self, workers: Iterable[int]) -> float:
        """For how long the first of `workers` has made no progress."""
        return time.monotonic() - min(self._seen[index] for index in workers)
