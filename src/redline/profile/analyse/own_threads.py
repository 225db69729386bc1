"""Which threads of a process are the program's: the profiler's own leave events as well.

One closes the GPU's windows, in a mark of its own. One begins and ends windows of the recording by
time, and otherwise waits. Neither makes a call for the program.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.decoded import Decoded
from redline.profile.reader import Name, Process

IMPORTS = "imports"  # the profiler's threads do so, too
SWITCHES = layout.CODE_WINDOW_ON, layout.CODE_WINDOW_OFF
QUIET = levels.PYTHON, levels.WAITING  # levels of what one calls that only keeps time

__all__ = ["ProgramThreads"]


class ProgramThreads:
    """How many threads of a process are the program's, slice by slice.

    Args:
        process: that was recorded.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        names = process.names.values()
        self._closes = _chosen([n for n in names if n.name == layout.GPU_COLLECTOR])
        own = layout.GPU_COLLECTOR, IMPORTS
        marked = [n for n in names if n.kind in ("operation", "inferred")]
        self._works = _chosen([n for n in marked if n.name not in own])
        self._calls = _chosen([n for n in names if n.kind == "call" and n.level not in QUIET])
        self._seen: dict[int, set[str]] = defaultdict(set)

    def add(self, threads: list[Decoded]) -> None:
        """The next slice."""
        for thread in threads:
            begun = np.flatnonzero(thread.counts)
            seen = {
                "closes": self._closes[begun].any(),
                "works": self._works[begun].any(),
                "calls": self._calls[begun].any(),
                "switches": np.isin(thread.special_codes, SWITCHES).any(),
            }
            self._seen[thread.index] |= {word for word, is_so in seen.items() if is_so}

    def number(self) -> int:
        """After the last slice."""
        main = self._process.main_shard
        own = [i for i, seen in self._seen.items() if i != main and _is_own(seen)]
        return len(self._process.sources) - len(own)


def _is_own(seen: set[str]) -> bool:
    keeps_time = "switches" in seen and "calls" not in seen
    return "works" not in seen and ("closes" in seen or keeps_time)


def _chosen(names: list[Name]) -> NDArray[np.bool_]:
    found = np.zeros(layout.MAX_IDS, bool)
    found[[name.id for name in names]] = True
    return found
