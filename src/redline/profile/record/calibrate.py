"""Short blocks without the native-boundary probe, from which its cost is estimated afterwards.

A cycle is on - off - on, so that a steady drift cancels. Blocks begin and end where a mark ends,
which aligns them with the program's work; after each switch a stretch is left out, in which code is
instrumented anew and caches warm up. `analyse.correction` reads the markers this leaves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from redline.profile import _native

BLOCK_NS = 40_000_000  # at least, of each of the three blocks
SETTLE_NS = 5_000_000  # at least, left out after a switch
FIRST_NS = 300_000_000  # after the start: imports and warm-up are over, hopefully
FEW_CYCLES, SHORT_REST_NS, REST_NS = 12, 300_000_000, 1_000_000_000

__all__ = ["Calibrator"]


class Calibrator:
    """Decides, whenever a mark ends and its time has come, which block comes next.

    Args:
        switch: observes the native boundary, or stops to.
    """

    def __init__(self, switch: Callable[[bool], None]) -> None:
        self._switch = switch
        self._thread = threading.get_ident()
        self._cycles = 0
        # (is observed afterwards, does it change, how long until the next), after each mark
        self._script = (
            (True, False, BLOCK_NS),  # an on block begins
            (False, True, SETTLE_NS),  # it ends: off
            (False, False, BLOCK_NS),  # settled: the off block begins
            (True, True, SETTLE_NS),  # it ends: on again
            (True, False, BLOCK_NS),  # settled: the second on block begins
            (True, False, 0),  # it ends
        )
        self._at = 0

    def start(self, now_ns: int) -> None:
        """Ask to be called."""
        _native.set_block_hook(self, now_ns + FIRST_NS)

    def __call__(self, now_ns: int) -> int:
        """Do the next thing of the script; when to be called again, ns."""
        if threading.get_ident() != self._thread:
            return now_ns + SETTLE_NS
        observed, changes, wait_ns = self._script[self._at]
        if changes and not observed:
            self._switch(False)
        _native.probe(observed, time.thread_time_ns())
        if changes and observed:
            self._switch(True)
        self._at = (self._at + 1) % len(self._script)
        if self._at == 0:
            self._cycles += 1
            wait_ns = SHORT_REST_NS if self._cycles < FEW_CYCLES else REST_NS
        return now_ns + wait_ns
