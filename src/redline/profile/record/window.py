"""When to record: from after some seconds and steps on, for some seconds or steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from redline.profile.record.options import Options

__all__ = ["Window"]


class Window:
    """The one window of a process; one that is forked from it has a new one.

    It begins once both delays are over, and ends by whichever length is reached first.

    Args:
        options: of the recording.
        begin: begins to record.
        end: ends it.
    """

    def __init__(
        self, options: Options, begin: Callable[[], object], end: Callable[[], object]
    ) -> None:
        self._options, self._begin, self._end = options, begin, end
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._steps = self._first_step = 0
        self._is_time = options.delay_s <= 0
        self._has_begun = False

    def open(self, set_step_hook: Callable[[Any], object]) -> None:
        """Begin, or wait for the time to come.

        Args:
            set_step_hook: takes what is to be called at each step.
        """
        if self._options.delay_steps or self._options.for_steps:
            set_step_hook(self._on_step)
        if self._is_time:
            self._begin_if_due()
        else:
            self._later(self._options.delay_s, self._time_has_come)

    def _time_has_come(self) -> None:
        self._is_time = True
        self._begin_if_due()

    def _begin_if_due(self) -> None:
        with self._lock:  # a step may end as the time comes
            due = self._is_time and self._steps >= self._options.delay_steps
            if not due or self._has_begun:
                return
            self._has_begun, self._first_step = True, self._steps
        self._begin()
        if self._options.for_s > 0:
            self._later(self._options.for_s, self._end)

    def _on_step(self) -> None:
        self._steps += 1
        if not self._has_begun:
            self._begin_if_due()
        elif self._options.for_steps == self._steps - self._first_step:
            self._end()

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        def wait() -> None:
            time.sleep(seconds)
            if os.getpid() == self._pid:
                action()

        threading.Thread(target=wait, name="redline-profile-window", daemon=True).start()
