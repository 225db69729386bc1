"""The threads of a process that has several: each one's own time, whoever leads.

A process's cells hold each instant once, charged to the thread that leads. What the others did
meanwhile is here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import operation_name, sweep_streams
from redline.profile.analyse.timeline import Timeline

__all__ = ["ThreadRow", "blind_share", "thread_rows"]


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """Time of one thread in one operation and level; as recorded, not corrected."""

    process: str
    pid: int
    thread: int  # in order of first events; 0 began the recording
    operation: str
    level: str
    raw_s: float


def thread_rows(timeline: Timeline) -> list[ThreadRow]:
    """All threads of a process by time; none of a process with one thread."""
    if len(timeline.threads) < 2:
        return []
    process, rows = timeline.process, list[ThreadRow]()
    for thread in timeline.threads:
        sizes = [len(thread.states), 2]
        streams = [thread.stream, timeline.window]
        held: NDArray[np.int64] = sweep_streams(streams, sizes, 0, max(timeline.end_ns, 0))
        found: dict[tuple[str, str], int] = defaultdict(int)
        for state, ns in zip(thread.states, held[:, 1].tolist(), strict=True):
            if state is not None and ns:
                found[operation_name(timeline, state), levels.LEVELS[state.level]] += ns
        own = sorted(found.items(), key=lambda item: -item[1])
        rows += [
            ThreadRow(process.name, process.pid, thread.index, *key, ns / 1e9) for key, ns in own
        ]
    return rows


def blind_share(timeline: Timeline) -> float:
    """The part of the recorded time in which native calls were not observed, of 1."""
    streams = [timeline.window, timeline.blind]
    held = sweep_streams(streams, [2, 2], 0, max(timeline.end_ns, 0))
    recorded = int(held[1].sum())
    return int(held[1, 1]) / recorded if recorded else 0.0
