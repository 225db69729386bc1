"""Signals that ask a run to stop, remembered until it can."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

PATIENCE_S = 1.0  # after which a further signal is a further wish


class StopSignal:
    """Remembers Ctrl-C, SIGTERM and SIGHUP until the iteration is over; a second stops at once.

    Systems send several for one wish: systemd SIGTERM and then SIGHUP, a closed terminal SIGHUP
    twice. So a second one counts only `PATIENCE_S` after the first, and SIGHUP never does. A SIGHUP
    that is ignored, as below `nohup`, stays ignored.

    It may be entered within itself: the outermost `with` counts.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._noted_s = 0.0
        self._depth = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.number is None:
            self.number, self._noted_s = number, now_s
        elif number != signal.SIGHUP and now_s - self._noted_s >= PATIENCE_S:
            raise KeyboardInterrupt(signal.Signals(number).name)
