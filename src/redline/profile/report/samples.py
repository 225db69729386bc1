"""Readings taken beside the events, as time series: CPU, memory, and the GPU's monitor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.samples import read_machine_samples
from redline.profile.analyse.timeline import decode
from redline.profile.gpu.activity import busy_stream
from redline.profile.gpu.records import GpuWindow
from redline.profile.reader import Process, Session
from redline.profile.report.bins import held

__all__ = ["gpu_series", "process_series", "session_series"]


def process_series(process: Process, row: int, begin_ns: int) -> list[dict[str, Any]]:
    """Resident memory and cores used by a process, from its monitor.

    Args:
        process: of the session.
        row: its number, kept in the series.
        begin_ns: CLOCK_MONOTONIC of the session's start.
    """
    if process.monitor is None:
        return []
    monitor = decode(process, process.monitor)
    found: list[dict[str, Any]] = []
    for code, group, name, unit in (
        (layout.CODE_RSS, "memory", "resident memory", "MiB"),
        (layout.CODE_PROCESS_CPU, "cpu", "cores used", "cores"),
    ):
        chosen = monitor.special_codes == code
        times = (monitor.special_times[chosen] + process.base_ns - begin_ns).tolist()
        values = monitor.special_values[chosen].tolist()
        if code == layout.CODE_RSS:
            points = [(t / 1e9, v / 1024) for t, v in zip(times, values, strict=True)]
        else:
            points = _rate(times, values)
        if points:
            found.append(_series(row, group, name, unit, points))
    return found


def _rate(times_ns: list[int], cpu_us: list[int]) -> list[tuple[float, float]]:
    """Cores used between each reading and the one before it."""
    before = zip(times_ns, cpu_us, strict=True)
    after = zip(times_ns[1:], cpu_us[1:], strict=True)
    return [
        (t1 / 1e9, (u1 - u0) * 1e3 / (t1 - t0))
        for (t0, u0), (t1, u1) in zip(before, after, strict=False)
        if t1 > t0
    ]


def _series(
    row: int | None, group: str, name: str, unit: str, points: list[tuple[float, float]]
) -> dict[str, Any]:
    return {
        "process": row,
        "group": group,
        "name": name,
        "unit": unit,
        "t_s": [round(t, 6) for t, _ in points],
        "value": [round(v, 4) for _, v in points],
    }


# Reading of the GPU's monitor: (name shown, unit, factor).
GPU_SHOWN = {
    "utilization": ("utilization", "%", 100.0),
    "memory_utilization": ("memory utilization", "%", 100.0),
    "memory_used_bytes": ("memory used", "MiB", 1 / 2**20),
    "sm_clock_mhz": ("SM clock", "MHz", 1.0),
    "memory_clock_mhz": ("memory clock", "MHz", 1.0),
    "power_w": ("power", "W", 1.0),
}


def session_series(session: Session, begin_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What was read of the whole machine, and what could not be.

    Args:
        session: that was recorded.
        begin_ns: CLOCK_MONOTONIC of its start.

    Returns:
        Series, none where nothing was read; and notes in words.
    """
    samples = read_machine_samples(session)
    if samples is None or len(samples.times_ns) == 0:
        return [], list(samples.problems) if samples else []
    times = ((samples.times_ns - begin_ns) / 1e9).tolist()
    found: list[dict[str, Any]] = []
    if samples.cores:
        busy = samples.cpu.sum(axis=1).tolist()
        name = f"all of the machine's {len(samples.cores)} cores"
        found.append(_series(None, "cpu", name, "cores", _known(times, busy)))
    for number, gpu in enumerate(samples.gpus):
        for reading, (name, unit, factor) in GPU_SHOWN.items():
            values = (samples.gpu[reading][:, number] * factor).tolist()
            points = _known(times, values)
            if points:
                title = f"{name}, GPU {number} ({gpu})"
                found.append(_series(None, "gpu", title, unit, points))
    return found, list(samples.problems)


def _known(times_s: list[float], values: list[float]) -> list[tuple[float, float]]:
    return [(t, v) for t, v in zip(times_s, values, strict=True) if math.isfinite(v)]


def gpu_series(
    windows: list[GpuWindow], row: int, edges_ns: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """How busy the GPU truly was with a process's work, to stand beside what a monitor says.

    Args:
        windows: in which the GPU's activity was recorded.
        row: number of the process, kept in the series.
        edges_ns: [N + 1] of the time bins, CLOCK_MONOTONIC.
    """
    if not windows:
        return []
    spans = sorted((w.begin_ns, w.end_ns) for w in windows)
    times = np.array(spans, np.int64).reshape(-1)
    known = held((times, np.tile(np.array([1, 0], np.uint32), len(spans))), edges_ns)
    busy = held(busy_stream(windows, 0), edges_ns)
    middles = (edges_ns[:-1] + edges_ns[1:]) / 2 - edges_ns[0]
    points = [
        (t / 1e9, 100 * b / k)
        for t, b, k in zip(middles.tolist(), busy.tolist(), known.tolist(), strict=True)
        if k
    ]
    return [_series(row, "gpu", "executing something", "%", points)]
