"""When to record: from after some seconds and steps on, for some seconds or steps, and again.

A schedule as `torch.profiler` has it: skip first (the delay), then record for so long, then wait
until the next window is due, so many times.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from redline.profile.record.options import Options

LONGEST_WAIT_S = 3600.0  # at once: longer than any thread can wait is not allowed

__all__ = ["Window"]


class Window:
    """The windows of a process, one after the other; one that is forked from it has new ones.

    The first begins once both delays are over. Each ends by whichever length is reached first. The
    next begins once both `every_s` and `every_steps` have passed since the last one began.

    Args:
        options: of the recording.
        begin: begins to record.
        end: ends it.
        over: called once after the last window.
        clock: seconds.
        lock: held while a window begins or ends.
    """

    def __init__(
        self,
        options: Options,
        begin: Callable[[], object],
        end: Callable[[], object],
        over: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        lock: threading.RLock | None = None,
    ) -> None:
        self._options, self._begin, self._end, self._over = options, begin, end, over
        self._pid, self._clock = os.getpid(), clock
        self._changed = threading.Condition(lock)  # a step may end as the time comes
        self._steps = 0
        self._first_step = 0  # of the open window
        self._count = 0  # of windows that have begun
        self._is_open = self._is_over = False
        self._due_s = clock() + options.delay_s  # when the next one begins, at the earliest
        self._due_steps = options.delay_steps
        self._end_s = math.inf

    def open(self, set_step_hook: Callable[[Any], object]) -> None:
        """Begin, or wait for the time to come.

        Args:
            set_step_hook: takes what is to be called at each step.
        """
        options = self._options
        if options.delay_steps or options.for_steps or options.every_steps:
            set_step_hook(self._on_step)
        self.look()
        if options.delay_s > 0 or options.for_s > 0 or options.every_s > 0:
            thread = threading.Thread(target=self._keep_time, name="redline-profile-window")
            thread.daemon = True
            thread.start()

    def close(self) -> None:
        """The recording ends: no window begins any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _on_step(self) -> None:
        with self._changed:
            self._steps += 1
        self.look()

    def _keep_time(self) -> None:
        """One thread for all windows, that looks whenever a time has come."""
        while os.getpid() == self._pid:
            with self._changed:
                if self._is_over:
                    return
                wait_s = self._next_s() - self._clock()
                if wait_s > 0:
                    self._changed.wait(min(wait_s, LONGEST_WAIT_S))
                    continue
            self.look()

    def _next_s(self) -> float:
        if self._is_open:
            return self._end_s
        return self._due_s if self._steps >= self._due_steps else math.inf

    def look(self) -> None:
        """End the window if it is time, and begin the next one if that is due."""
        with self._changed:
            if self._is_over:
                return
            if self._is_open and self._has_ended():
                self._end()
                self._is_open, self._is_over = False, self._was_last()
            is_due = self._clock() >= self._due_s and self._steps >= self._due_steps
            if is_due and not self._is_open and not self._is_over:
                self._begin_next()
            is_over = self._is_over
            self._changed.notify_all()
        if is_over:
            self._over()

    def _begin_next(self) -> None:
        options, now_s = self._options, self._clock()
        self._is_open, self._first_step = True, self._steps
        self._count += 1
        self._due_s = now_s + options.every_s
        self._due_steps = self._steps + options.every_steps
        self._begin()
        self._end_s = self._clock() + options.for_s if options.for_s > 0 else math.inf

    def _has_ended(self) -> bool:
        steps = self._options.for_steps
        return self._clock() >= self._end_s or 0 < steps <= self._steps - self._first_step

    def _was_last(self) -> bool:
        return not self._options.repeats or self._count == self._options.repeat
