"""What the HTML page shows, as one JSON object: the report's numbers, and the same per time bin.

| key | holds |
|---|---|
| `summary` | what `redline report --format json` prints |
| `edges_s` | [N + 1] edges of the time bins, s since the session's start |
| `processes` | per process of the summary: `begin_s`, `end_s` |
| `cell_bins` | per cell of the summary: `[first bin, [ns, ...]]`; `null` without a share |
| `function_bins` | per function shown: `[row of the summary, first bin, [ns, ...], [calls, ...]]` |
| `flames` | per process `[[place of the caller or -1, name, file, line, s], ...]` |
| `series` | sampled values: `process` (row or null), `group`, `name`, `unit`, `t_s`, `value` |
| `series_notes` | what could not be sampled, and why |
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse.processes import session_span
from redline.profile.analyse.slices import Outline, follow, outline
from redline.profile.analyse.stacks import Stacks, flame, read_stacks
from redline.profile.analyse.summary import Summary
from redline.profile.analyse.timeline import Timeline
from redline.profile.gpu.activity import streams_of
from redline.profile.gpu.records import GpuWindow, windows_of
from redline.profile.levels import LEVELS
from redline.profile.reader import Process, Session
from redline.profile.report.bins import CallBins, CellBins
from redline.profile.report.colors import LEVEL_COLORS, SERIES_COLORS
from redline.profile.report.samples import gpu_series, process_series, session_series

MAX_FUNCTIONS = 60  # per process
MACHINE_FACTS = {"machine": "platform", "cpus": "CPUs", "python": "Python"}
MAX_BINS, MIN_BINS, BINS_OF_ALL = 240, 60, 6000

__all__ = ["PageBins", "page_data"]


def page_data(session: Session, summary: Summary) -> dict[str, Any]:
    """Everything the page needs.

    Args:
        session: that was recorded.
        summary: of the same session.

    Raises:
        ProfileError: if the C extension was not built.
    """
    outlines = outline(session.processes)
    stacks = [read_stacks(process) for process in session.processes]
    windows = [windows_of(process) for process in session.processes]
    bins = PageBins(session, summary, outlines, stacks, windows)
    follow(outlines, bins.add, partial(_tell, stacks))
    return bins.data()


def _tell(stacks: list[Stacks | None], place: int, timeline: Timeline) -> None:
    own = stacks[place]
    if own is not None:
        own.add(timeline)


class PageBins:
    """The page's data, slice by slice.

    Args:
        session: that was recorded.
        summary: of the same session.
        outlines: of its processes.
        stacks: their samples, which know in the end what they were in.
        windows: of each, in which the GPU was observed.
    """

    def __init__(
        self,
        session: Session,
        summary: Summary,
        outlines: list[Outline],
        stacks: list[Stacks | None],
        windows: list[list[GpuWindow]],
    ) -> None:
        self._session, self._summary, self._outlines = session, summary, outlines
        self._begin_ns, end_ns = session_span(outlines)
        self._edges = _edges(self._begin_ns, max(end_ns, self._begin_ns + 1), len(outlines))
        self._sums = [
            _Bins(each, own, summary, self._edges)
            for each, own in zip(outlines, windows, strict=True)
        ]
        self._stacks = stacks

    def add(self, place: int, timeline: Timeline) -> None:
        """The next slice of the process at this place."""
        self._sums[place].add(timeline)

    def data(self) -> dict[str, Any]:
        """After the last slice; see above."""
        cell_bins: list[Any] = [None] * len(self._summary.cells)
        function_bins: list[Any] = []
        series, notes = session_series(self._session, self._begin_ns)
        manifest = self._session.manifest
        for row, each in enumerate(self._sums):
            each.put_cells(cell_bins)
            function_bins += each.functions()
            series += process_series(each.process, row, self._begin_ns)
            series += gpu_series(each.windows, row, self._edges)
        return {
            "summary": self._summary.to_json(),
            "command": manifest.get("command"),
            "machine": {MACHINE_FACTS[k]: manifest[k] for k in MACHINE_FACTS if k in manifest},
            "edges_s": ((self._edges - self._begin_ns) / 1e9).tolist(),
            "processes": [self._span_s(each) for each in self._outlines],
            "cell_bins": cell_bins,
            "function_bins": function_bins,
            "flames": [_flame(stacks) for stacks in self._stacks],
            "series": series,
            "series_notes": notes,
            "levels": list(LEVELS),
            "level_colors": LEVEL_COLORS,
            "series_colors": list(SERIES_COLORS),
        }

    def _span_s(self, found: Outline) -> dict[str, float]:
        since_ns = found.process.base_ns - self._begin_ns
        return {"begin_s": since_ns / 1e9, "end_s": (since_ns + max(found.end_ns, 0)) / 1e9}


def _edges(begin: int, end: int, processes: int) -> NDArray[np.int64]:
    number = min(max(BINS_OF_ALL // max(processes, 1), MIN_BINS), MAX_BINS, end - begin)
    return np.array([begin + (end - begin) * i // number for i in range(number + 1)], np.int64)


class _Bins:
    """What the page shows of one process per stretch of time, slice by slice."""

    def __init__(
        self,
        found: Outline,
        windows: list[GpuWindow],
        summary: Summary,
        edges: NDArray[np.int64],
    ) -> None:
        self.process, self._summary = found.process, summary
        base_ns = self.process.base_ns
        self.windows = windows
        self._gpu = streams_of(windows, base_ns)
        self._rows = _shown_functions(self.process, summary)
        self._cells = CellBins(edges - base_ns)
        self._calls = CallBins([number for _, number in self._rows], edges - base_ns)

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        self._cells.add(timeline, *self._gpu)
        self._calls.add(timeline)

    def put_cells(self, into: list[Any]) -> None:
        """The bins of each cell of the summary that is of this process."""
        binned = self._cells.result()
        for row, cell in enumerate(self._summary.cells):
            key = (cell.phase, cell.operation, cell.level, cell.gpu_busy)
            if cell.pid == self.process.pid and key in binned:
                into[row] = _sparse(binned.pop(key))

    def functions(self) -> list[Any]:
        """The bins of the functions that are shown."""
        found = self._calls.result()
        return [
            [row, *_sparse(found[number].inclusive_ns), found[number].calls.tolist()]
            for row, number in self._rows
        ]


def _flame(stacks: Stacks | None) -> list[Any]:
    """The boxes of the flame graph."""
    return [] if stacks is None else [list(node) for node in flame(stacks)]


def _shown_functions(process: Process, summary: Summary) -> list[tuple[int, int]]:
    """(row of the summary, id) of those that take longest."""
    # Of one name there may be two levels, as of loading libraries.
    ids = {
        (LEVELS[name.level], f"{name.module}.{name.name}" if name.module else name.name): name.id
        for name in process.names.values()
        if name.kind == "call"
    }
    return [
        (row, ids[function.level, function.function])
        for row, function in enumerate(summary.functions)
        if function.pid == process.pid and (function.level, function.function) in ids
    ][:MAX_FUNCTIONS]


def _sparse(values: NDArray[np.int64]) -> list[Any]:
    """The number of zeros in front, and the values from there to the last that is not zero."""
    used = np.flatnonzero(values)
    if len(used) == 0:
        return [0, []]
    return [int(used[0]), values[used[0] : used[-1] + 1].tolist()]
