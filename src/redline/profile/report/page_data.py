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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse.stacks import flame, read_stacks
from redline.profile.analyse.summary import Summary
from redline.profile.analyse.timeline import Timeline, build_timeline
from redline.profile.gpu.activity import api_stream, busy_stream
from redline.profile.gpu.records import GpuWindow, read_windows
from redline.profile.levels import LEVELS
from redline.profile.reader import Session
from redline.profile.report.bins import bin_cells, bin_functions
from redline.profile.report.colors import LEVEL_COLORS, SERIES_COLORS
from redline.profile.report.samples import gpu_series, process_series, session_series

MAX_FUNCTIONS = 60  # per process
MACHINE_FACTS = {"machine": "platform", "cpus": "CPUs", "python": "Python"}
MAX_BINS, MIN_BINS, BINS_OF_ALL = 240, 60, 6000

__all__ = ["page_data"]


def page_data(session: Session, summary: Summary) -> dict[str, Any]:
    """Everything the page needs.

    Args:
        session: that was recorded.
        summary: of the same session.

    Raises:
        ProfileError: if the C extension was not built.
    """
    timelines = [build_timeline(process) for process in session.processes]
    begin = min((t.process.base_ns for t in timelines), default=0)
    end = max((t.process.base_ns + t.end_ns for t in timelines), default=1)
    edges = _edges(begin, max(end, begin + 1), len(timelines))
    cell_bins: list[Any] = [None] * len(summary.cells)
    function_bins: list[Any] = []
    series, notes = session_series(session, begin)
    manifest = session.manifest
    for row, timeline in enumerate(timelines):
        own = edges - timeline.process.base_ns
        windows = read_windows(timeline.process)[0]
        _put_cells(timeline, summary, own, windows, cell_bins)
        function_bins += _functions(timeline, summary, own)
        series += process_series(timeline.process, row, begin)
        series += gpu_series(windows, row, edges)
    return {
        "summary": summary.to_json(),
        "command": manifest.get("command"),
        "machine": {MACHINE_FACTS[k]: manifest[k] for k in MACHINE_FACTS if k in manifest},
        "edges_s": ((edges - begin) / 1e9).tolist(),
        "processes": [
            {
                "begin_s": (t.process.base_ns - begin) / 1e9,
                "end_s": (t.process.base_ns - begin + max(t.end_ns, 0)) / 1e9,
            }
            for t in timelines
        ],
        "cell_bins": cell_bins,
        "function_bins": function_bins,
        "flames": [_flame(timeline) for timeline in timelines],
        "series": series,
        "series_notes": notes,
        "levels": list(LEVELS),
        "level_colors": LEVEL_COLORS,
        "series_colors": list(SERIES_COLORS),
    }


def _edges(begin: int, end: int, processes: int) -> NDArray[np.int64]:
    number = min(max(BINS_OF_ALL // max(processes, 1), MIN_BINS), MAX_BINS, end - begin)
    return np.array([begin + (end - begin) * i // number for i in range(number + 1)], np.int64)


def _put_cells(
    timeline: Timeline,
    summary: Summary,
    edges: NDArray[np.int64],
    windows: list[GpuWindow],
    into: list[Any],
) -> None:
    base_ns = timeline.process.base_ns
    gpu = (busy_stream(windows, base_ns), api_stream(windows, base_ns)) if windows else ()
    binned = bin_cells(timeline, edges, *gpu)
    for row, cell in enumerate(summary.cells):
        key = (cell.phase, cell.operation, cell.level, cell.gpu_busy)
        if cell.pid == timeline.process.pid and key in binned:
            into[row] = _sparse(binned.pop(key))


def _functions(timeline: Timeline, summary: Summary, edges: NDArray[np.int64]) -> list[Any]:
    # Of one name there may be two levels, as of loading libraries.
    ids = {
        (LEVELS[name.level], f"{name.module}.{name.name}" if name.module else name.name): name.id
        for name in timeline.process.names.values()
        if name.kind == "call"
    }
    rows = [
        (row, ids[function.level, function.function])
        for row, function in enumerate(summary.functions)
        if function.pid == timeline.process.pid and (function.level, function.function) in ids
    ][:MAX_FUNCTIONS]
    found = bin_functions(timeline, [number for _, number in rows], edges)
    return [
        [row, *_sparse(found[number].inclusive_ns), found[number].calls.tolist()]
        for row, number in rows
    ]


def _flame(timeline: Timeline) -> list[Any]:
    stacks = read_stacks(timeline)
    return [] if stacks is None else [list(node) for node in flame(stacks)]


def _sparse(values: NDArray[np.int64]) -> list[Any]:
    """The number of zeros in front, and the values from there to the last that is not zero."""
    used = np.flatnonzero(values)
    if len(used) == 0:
        return [0, []]
    return [int(used[0]), values[used[0] : used[-1] + 1].tolist()]
