"""End the program after the last window, as it would end by itself.

The process sends itself SIGTERM. A program that handles it does what it always does then: Redline's
runs save a checkpoint. In any other program SystemExit(0) is raised in the main thread, so that
`finally` blocks and exit handlers run, and the exit status is 0. A SIGTERM of somebody else means
what it always does.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from redline.errors import ConfigError

__all__ = ["EarlyExit"]


class EarlyExit:
    """Of one process; one that is forked from it goes on.

    Raises:
        ConfigError: if this is not the main thread, which alone can be told to end.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "exit_after_window ends the main thread, and this is another one. Begin the "
                "session in the main thread"
            )
        self._pid, self._is_due = os.getpid(), False
        self._before = signal.getsignal(signal.SIGTERM)
        if self._before in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGTERM, self._on_signal)

    def exit(self) -> None:
        """End the program soon; returns, as any thread may call it."""
        if os.getpid() == self._pid:
            self._is_due = True
            os.kill(self._pid, signal.SIGTERM)

    def undo(self) -> None:
        """The signal has its old meaning again; for the main thread, in a forked child as well."""
        is_ours = signal.getsignal(signal.SIGTERM) == self._on_signal
        if is_ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_due and os.getpid() == self._pid:
            self._is_due = False
            raise SystemExit(0)
        if self._before is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
