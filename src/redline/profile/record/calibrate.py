"""Short blocks without the native-boundary probe, from which its cost is estimated afterwards.

A cycle is on - off - on, so that a steady drift cancels. What limits the estimate is that blocks
do not hold the same work: so all three begin and end where the same mark ends (the rarest of which
some end in a block: whole iterations where they are short, else whole steps), and a block in which
the thread mostly waited is prolonged. After each switch a stretch is left out, in which code is
instrumented anew and caches warm up. Cycles come in close succession at first, so that a run of
some ten seconds has enough of them, and seldom later; but before Python 3.12 they go on as they
began. `analyse.correction` reads the markers this leaves.

Between two cycles the probe also rests where more events come than the recording may hold, and
most of the time while modules are imported. An import is made once: no block tells what the probe
costs there, and on some machines it costs more than a program's own code would. What is seen of
imports now and then says how the rest of them is split.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from redline.profile import _native

BLOCK_NS = 40_000_000  # CPU time, at least, of each of the three blocks
LONGEST_NS = 120_000_000  # wall time after which a block ends nevertheless
PATIENCE_NS = 80_000_000  # how long beyond its time a block waits for its mark's end
SETTLE_NS = 4_000_000  # at least, left out after a switch
FIRST_NS = 300_000_000  # after the start: imports and warm-up are over, hopefully
IMPORTS = "imports"  # the operation
IMPORTS_SEEN_NS = 5_000_000  # of imports, between two rests
IMPORTS_REST_NS = 45_000_000
# After this a block without the probe is ended by whichever thread's mark ends next: the
# calibrated thread is blocked, or computes without marks.
OVERDUE_NS = LONGEST_NS + PATIENCE_NS + 50_000_000
# So much later the main thread itself ends a rest that no end of an import or mark has ended: what
# the module computes has none. Blocks and rests of the limit wait for a mark: the ones to hold
# whole units of work, the others as nobody would ask for the next.
IMPORTS_LATE_NS = 20_000_000
MIN_ENDS = 2  # in a block, of the mark that blocks are aligned with

__all__ = [
    "IMPORTS",
    "RARE",
    "SCHEDULE",
    "STEADY",
    "Calibrator",
    "Limit",
    "Schedule",
    "choose_anchor",
]


class Schedule(NamedTuple):
    """How much of the time is spent without the probe.

    Attributes:
        off_ns: CPU time, at least, of the block without it.
        rests: (how many cycles, the rest after each in ns), of the first cycles.
        rest_ns: after each later one.
    """

    off_ns: int
    rests: tuple[tuple[int, int], ...]
    rest_ns: int


# Of a busy program's first 10 s some 35 cycles, and a sixth of the time unobserved; of an hour 4%.
RARE = Schedule(BLOCK_NS, ((24, 20_000_000), (24, 200_000_000)), 1_000_000_000)
# A third of the time unobserved, always. Before Python 3.12 every call of every function is
# reported, which slows a program of small steps by a quarter: what is seen of two thirds of the
# time says as much of its shares, and costs a third less.
STEADY = Schedule(60_000_000, (), 5_000_000)
SCHEDULE = RARE if sys.version_info >= (3, 12) else STEADY

LONGEST_REST_NS = 1_000_000_000  # without the probe at once, where events come too fast

Tallies = dict[int, tuple[int, int]]


class Limit:
    """How long the probe must rest so that no more events come than may, on average.

    Args:
        events_per_s: at most; 0 for any number.
        events: how many were recorded so far.
        acts: called the first time that there are too many.
    """

    def __init__(
        self, events_per_s: float, events: Callable[[], int], acts: Callable[[], object]
    ) -> None:
        self._events_per_s, self._events, self._acts = events_per_s, events, acts
        self._has_acted = False
        self._since: tuple[int, int] | None = None  # time and events when it was last asked

    def rest_ns(self, now_ns: int) -> int:
        """From now on; 0 where it need not."""
        if not self._events_per_s:
            return 0
        events = self._events()
        since_ns, before = self._since or (now_ns, events)
        self._since = now_ns, events
        rest_ns = round((events - before) / self._events_per_s * 1e9) - (now_ns - since_ns)
        if rest_ns <= 0:
            return 0
        if not self._has_acted:
            self._has_acted = True
            self._acts()
        rest_ns = min(max(rest_ns, SETTLE_NS), LONGEST_REST_NS)
        self._since = now_ns + rest_ns, events
        return rest_ns


class Calibrator:
    """Decides, whenever a mark ends and its time has come, which block comes next.

    Args:
        switch: observes the native boundary, or stops to.
        schedule: how often.
        limit: of the events; None: as many as come.
    """

    def __init__(
        self,
        switch: Callable[[bool], None],
        schedule: Schedule = SCHEDULE,
        limit: Limit | None = None,
    ) -> None:
        self._switch, self._schedule, self._limit = switch, schedule, limit
        self._imports = _native.intern("operation", IMPORTS)
        self._first_ns = self._due_ns = 0
        self._is_resting = False  # the probe, as events come too fast or modules are imported
        self._for_import = False  # which of the two
        # A window that begins late is begun by another thread.
        self._thread = threading.main_thread().ident or 0
        self._cycles = 0
        # (is observed afterwards, does it change, ends a block, how long until the next)
        self._script = (
            (True, False, False, BLOCK_NS),  # an on block begins
            (False, True, True, SETTLE_NS),  # it ends: off
            (False, False, False, schedule.off_ns),  # settled: the off block begins
            (True, True, True, SETTLE_NS),  # it ends: on again
            (True, False, False, BLOCK_NS),  # settled: the second on block begins
            (True, False, True, 0),  # it ends
        )
        self._at = -1  # before the cycle it is looked which marks end how often
        self._ends: Tallies | None = None
        self._block = (0, 0)  # wall and CPU time at its beginning
        self._is_off = False

    def start(self, now_ns: int) -> None:
        """Ask to be called."""
        self._first_ns = now_ns + FIRST_NS
        self._due_ns = now_ns + IMPORTS_SEEN_NS
        _native.set_block_hook(self, self._due_ns)

    def __call__(self, now_ns: int) -> int:
        """Do what is due; when to be called again, ns. At the end of an import it may be early."""
        is_own = threading.get_ident() == self._thread
        is_importing = is_own and _native.asked_within() == self._imports
        is_over = is_own and self._is_resting and self._for_import and not is_importing
        if now_ns >= self._due_ns or is_over:
            self._due_ns = self._next(now_ns, is_own, is_importing)
        return self._due_ns

    def _next(self, now_ns: int, is_own: bool, is_importing: bool) -> int:
        """Do the next thing of the script."""
        if not is_own:
            overdue = self._is_off and now_ns - self._block[0] > OVERDUE_NS
            return now_ns + (self.finish() if overdue else SETTLE_NS)
        if self._is_resting:
            rest_ns = self.finish()
            return now_ns + (IMPORTS_SEEN_NS if is_importing else rest_ns)
        if is_importing:
            return now_ns + self._while_importing(now_ns)
        if now_ns < self._first_ns:
            return self._first_ns
        if self._at < 0:
            return now_ns + self._look_around()
        cpu_ns = time.thread_time_ns()
        observed, changes, ends, wait_ns = self._script[self._at]
        if ends and (missing_ns := self._missing_ns(now_ns, cpu_ns)) > 0:
            return now_ns + missing_ns
        if changes and not observed:
            self._switch(False)
        _native.probe(observed, cpu_ns)
        if changes and observed:
            self._switch(True)
        self._is_off = not observed
        self._block = now_ns, cpu_ns
        self._at += 1
        if self._at < len(self._script):
            return now_ns + wait_ns
        rest_ns = self._end_cycle()
        return now_ns + (self._rest(now_ns, cpu_ns) or rest_ns)

    def _rest(self, now_ns: int, cpu_ns: int) -> int:
        """Observe nothing for a while if events come too fast; how long, ns."""
        rest_ns = self._limit.rest_ns(now_ns) if self._limit is not None else 0
        if rest_ns:
            self._stop(now_ns + rest_ns, cpu_ns, for_import=False)
        return rest_ns

    def _stop(self, until_ns: int, cpu_ns: int, *, for_import: bool) -> None:
        # Said first: an interrupt in between is then mended when the rest is over.
        self._is_off = self._is_resting = True
        self._for_import = for_import
        self._block = until_ns, cpu_ns
        if for_import:
            _native.wake_block_hook(until_ns + IMPORTS_LATE_NS)
        self._switch(False)
        _native.probe(False, cpu_ns)

    def _while_importing(self, now_ns: int) -> int:
        """Rest, unless a block lasts, or no other thread could end it; when to ask again, ns."""
        if self._at >= 0 or _clock_of(self._thread) is None:
            return SETTLE_NS
        self._ends = None
        self._stop(now_ns + IMPORTS_REST_NS, time.thread_time_ns(), for_import=True)
        return IMPORTS_REST_NS

    def finish(self) -> int:
        """End the cycle, from any thread; how long to rest, ns."""
        was_resting = self._is_resting
        if self._is_off:
            cpu_ns = self._cpu_ns()
            if cpu_ns is None:
                return SETTLE_NS
            _native.probe(True, cpu_ns)
            self._switch(True)
            _native.wake_block_hook(-1)
            self._is_off = self._is_resting = False
        return self._rest_ns() if was_resting else self._end_cycle()

    def _cpu_ns(self) -> int | None:
        """CPU time of the calibrated thread, where the system tells the one that asks."""
        if threading.get_ident() == self._thread:
            return time.thread_time_ns()
        clock = _clock_of(self._thread)
        return time.clock_gettime_ns(clock) if clock is not None else None

    def _end_cycle(self) -> int:
        self._at, self._ends = -1, None
        self._cycles += 1
        _native.set_block_anchor(0, 0)
        return self._rest_ns()

    def _look_around(self) -> int:
        """Count for the length of a block what ends; then choose the mark to align with."""
        now: Tallies = _native.tallies()
        if self._ends is None:
            self._ends = now
            return BLOCK_NS
        _native.set_block_anchor(choose_anchor(self._ends, now), PATIENCE_NS)
        self._ends = None
        self._at = 0
        return 0

    def _missing_ns(self, now_ns: int, cpu_ns: int) -> int:
        """How much longer the block should take."""
        began_ns, began_cpu_ns = self._block
        wanted_ns = self._schedule.off_ns if self._is_off else BLOCK_NS
        missing_ns = wanted_ns * 9 // 10 - (cpu_ns - began_cpu_ns)
        return missing_ns if now_ns - began_ns < LONGEST_NS else 0

    def _rest_ns(self) -> int:
        number = self._cycles
        for count, rest_ns in self._schedule.rests:
            number -= count
            if number < 0:
                return rest_ns
        return self._schedule.rest_ns


def _clock_of(thread: int) -> int | None:
    """The CPU clock of a thread, where the system has such."""
    find = getattr(time, "pthread_getcpuclockid", None)
    return find(thread) if find is not None else None


def choose_anchor(before: Tallies, after: Tallies) -> int:
    """The id of the mark that blocks are to begin and end with, 0 for any.

    Args:
        before: {id: (time_ns, ends)} at the beginning of some stretch as long as a block.
        after: the same at its end.

    Returns:
        Of the ids with at least `MIN_ENDS` ends in between the one with the fewest: the longest
        unit of work that fits a block several times; else 0.
    """
    ends = {key: now[1] - before.get(key, (0, 0))[1] for key, now in after.items()}
    often = {key: number for key, number in ends.items() if number >= MIN_ENDS}
    return min(often, key=lambda key: often[key], default=0)
