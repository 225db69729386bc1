"""How far a program says it is, how fast that grew, and how long the whole would take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from redline.profile.reader import Reported

__all__ = ["Progress", "progress_of"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a process has reported by the end of the recording."""

    done: float
    total: float
    per_s: float = math.nan  # while it was recorded; nan: it was said once only, or stood still

    @property
    def share(self) -> float:
        """Of 1."""
        return self.done / self.total

    @property
    def whole_s(self) -> float:
        """From nothing to all, at the recorded speed."""
        return self.total / self.per_s


def progress_of(reported: Sequence[Reported]) -> Progress | None:
    """Of the lines of a process, in their order; None where there are none.

    The speed is that within the windows of the recording: what was done between two of them counts
    neither as work nor as time. A window in which the number went back says nothing of it.
    """
    if not reported:
        return None
    windows: dict[int, list[Reported]] = defaultdict(list)
    for line in reported:
        windows[line.window].append(line)
    done = time_ns = 0.0
    for lines in windows.values():
        first, last = lines[0], lines[-1]
        if last.done >= first.done and last.time_ns > first.time_ns:
            done += last.done - first.done
            time_ns += last.time_ns - first.time_ns
    per_s = 1e9 * done / time_ns if done > 0 else math.nan
    return Progress(reported[-1].done, reported[-1].total, per_s)
