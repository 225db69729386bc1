"""Calls of native functions: as observed, and how many they were with those that were not.

Calls in calibration blocks are not seen, nor are those in rests of the probe. While modules are
imported it rests nine tenths of the time. So there are two shares of what was observed, of imports
and of all else, and each call is of one of the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.cells import sweep_streams
from redline.profile.analyse.decoded import Decoded, Stream, states_at
from redline.profile.analyse.timeline import Timeline
from redline.profile.reader import Process

MOST_BLIND = 0.9  # of the time; estimates from less than the rest would be none
IMPORTS = "imports"

__all__ = ["CallSums"]


class CallSums:
    """Of each name of a process, slice by slice.

    Args:
        process: that was recorded.
    """

    def __init__(self, process: Process) -> None:
        names = process.names.values()
        self._imports = [n.id for n in names if (n.kind, n.name) == ("operation", IMPORTS)]
        self._is_begin = np.zeros(2 * layout.MAX_IDS, bool)
        self._is_begin[[2 * name.id for name in names if name.kind == "call"]] = True
        self.calls, self.inclusive_ns = np.zeros((2, layout.MAX_IDS), np.int64)
        self._importing = np.zeros(layout.MAX_IDS, np.int64)  # of the calls
        self._ns = np.zeros(
            (2, 2), np.int64
        )  # recorded: not blind and blind, without imports and in

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        importing = self._importing_of(timeline)
        streams = [timeline.window, timeline.blind, importing]
        self._ns += sweep_streams(streams, [2, 2, 2], *timeline.span_ns)[1]
        for thread in timeline.threads:
            self.calls[: len(thread.counts)] += thread.counts
            self.inclusive_ns[: len(thread.inclusive_ns)] += thread.inclusive_ns
            if len(importing[0]):
                self._importing += self._calls_in(importing, thread)

    def _importing_of(self, timeline: Timeline) -> Stream:
        """1 while the process imports; empty in a slice in which it never does."""
        is_import = np.array([state.marked in self._imports for state in timeline.states])
        if not is_import.any():
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        times, own = timeline.lead[0], is_import[timeline.lead[1]]
        changes = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        return times[changes], own[changes].astype(np.uint32)

    def _calls_in(self, importing: Stream, thread: Decoded) -> NDArray[np.int64]:
        """[MAX_IDS] of a thread, begun while the process imported."""
        codes = thread.rows[1]
        rows = np.flatnonzero(self._is_begin[codes])
        rows = rows[states_at(importing, thread.times_of(rows)) == 1]
        return np.bincount(codes[rows] >> 1, minlength=layout.MAX_IDS)

    def estimated_calls(self, number: int) -> float:
        """Of the name with this id, with those that were not observed."""
        recorded = self._ns.sum(axis=0)
        blind = np.minimum(self._ns[1] / np.maximum(recorded, 1), MOST_BLIND)
        importing = self._importing[number]
        calls = np.array([self.calls[number] - importing, importing])
        return float((calls / (1.0 - blind)).sum())
