"""CPU time of a process, in all and while it was recorded."""

from __future__ import annotations

import numpy as np

from redline.profile import layout
from redline.profile.analyse.decoded import decode
from redline.profile.analyse.timeline import Timeline
from redline.profile.reader import Process

__all__ = ["CpuSums"]


class CpuSums:
    """The CPU time of a process, slice by slice.

    It is read twice a second, windows or not. Between two readings it is taken to pass evenly.

    Args:
        process: that was recorded.
    """

    def __init__(self, process: Process) -> None:
        times, spent_s = [0], [float(process.start.get("cpu_s", 0.0))]
        if process.monitor is not None:
            monitor = decode(process, process.monitor)
            chosen = monitor.special_codes == layout.CODE_PROCESS_CPU
            times += monitor.special_times[chosen].tolist()
            spent_s += (monitor.special_values[chosen] / 1e6).tolist()
        if process.end is not None:
            times.append(int(process.end["time_ns"]) - process.base_ns)
            spent_s.append(float(process.end.get("cpu_s", 0.0)))
        self._times_ns = np.maximum.accumulate(np.array(times, np.int64))
        self._spent_s = np.maximum.accumulate(np.array(spent_s))
        self.whole_s = max(spent_s[-1] - spent_s[0], 0.0)  # since the process joined the session
        self.recorded_s = 0.0  # of it, in the windows of the recording

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        begin_ns, end_ns = timeline.span_ns
        times, is_on = timeline.window
        edges = np.clip(np.append(times, end_ns), begin_ns, end_ns)
        spent_s = np.diff(np.interp(edges, self._times_ns, self._spent_s))
        self.recorded_s += float((spent_s * (is_on == 1)).sum())
