"""Readings taken beside the events, as time series: CPU, memory, and the GPU's monitor."""

from __future__ import annotations

import json
from typing import Any

from redline.profile import layout
from redline.profile.analyse.timeline import decode
from redline.profile.reader import Process, Session

__all__ = ["process_series", "session_series"]


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
    found = []
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


UNITS = {
    **{"_percent": "%", "_fraction": "", "_bytes": "MiB", "_mhz": "MHz", "_w": "W"},
    **{"_mw": "mW", "_c": "degC", "_s": "s", "_cores": "cores"},
}
TIME_KEYS = ("time_ns", "monotonic_ns", "t_ns")


def session_series(session: Session, begin_ns: int) -> list[dict[str, Any]]:
    """The readings of `samples.jsonl`, one series per number in its lines.

    Each line is an object with `time_ns` (CLOCK_MONOTONIC) and readings, nested at will; what
    belongs to a list gets its index as a name. Absent file: no series. Lines that are no such
    object, the last one of a killed run for one, are left out.

    Args:
        session: that was recorded.
        begin_ns: CLOCK_MONOTONIC of its start.
    """
    path = session.directory / "samples.jsonl"
    if not path.exists():
        return []
    points: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            sample = json.loads(line)
        except json.JSONDecodeError:
            continue
        time_ns = _time_of(sample)
        if time_ns is None:
            continue
        readings = {key: value for key, value in sample.items() if key not in TIME_KEYS}
        for name, value in _numbers(readings):
            points.setdefault(name, []).append(((time_ns - begin_ns) / 1e9, value))
    return [_named(name, values) for name, values in points.items()]


def _time_of(sample: Any) -> int | None:
    if not isinstance(sample, dict):
        return None
    found = next((sample[key] for key in TIME_KEYS if key in sample), None)
    return found if isinstance(found, int) else None


def _numbers(value: Any, name: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], float]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, (int, float)):
        return [(name, float(value))]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return []
    return [found for key, item in items for found in _numbers(item, (*name, str(key)))]


def _named(name: tuple[str, ...], points: list[tuple[float, float]]) -> dict[str, Any]:
    suffix = next((s for s in UNITS if any(part.endswith(s) for part in name)), "")
    unit = UNITS.get(suffix, "")
    if suffix == "_bytes":
        points = [(t, v / 2**20) for t, v in points]
    shown = " ".join(part.removesuffix(suffix) if suffix else part for part in name)
    lowered = shown.lower()
    if "gpu" in lowered or "nvml" in lowered:
        group = "gpu"
    elif "mem" in lowered or "rss" in lowered:
        group = "memory"
    else:
        group = "cpu" if "cpu" in lowered or "core" in lowered else "other"
    return _series(None, group, shown.replace("_", " "), unit, points)
