"""The readings taken beside the program: CPU per core, memory per process, GPUs as a monitor sees.

A reading belongs to the time since the one before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.plain_text import shortened
from redline.profile import layout
from redline.profile.reader import Session, read_whole

GPU_READINGS = (
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
)

__all__ = ["GPU_READINGS", "MachineSamples", "read_machine_samples"]


@dataclass(frozen=True, slots=True)
class MachineSamples:
    """Readings over time; NaN where one is not known."""

    times_ns: NDArray[np.int64]  # [N] CLOCK_MONOTONIC
    cpu: NDArray[np.float64]  # [N, cores] busy share, of 1
    cores: list[int]
    rss_bytes: dict[int, NDArray[np.float64]]  # {pid: [N]}
    cpu_s: dict[int, NDArray[np.float64]]  # {pid: [N]} CPU time since the process began
    gpus: list[str]  # names
    gpu: dict[str, NDArray[np.float64]]  # {reading: [N, gpus]}
    problems: list[str] = field(default_factory=list)  # among them why there are no GPU readings


def read_machine_samples(session: Session) -> MachineSamples | None:
    """All readings of a session, None if none were taken."""
    path = session.directory / layout.MACHINE_SAMPLES
    if not path.exists():
        return None
    start: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        lines = read_whole(path).splitlines()
    except OSError as error:
        return _assemble({}, [], [str(error)])
    for line in lines:
        try:
            row: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            problems.append(f"{path.name}: a torn line, ignored")
            continue
        if not isinstance(row, dict):
            problems.append(f"{path.name}: a line that makes no sense, ignored")
            continue
        found = cast(dict[str, Any], row)
        if found.get("event") == "start":
            start = found
        else:
            rows.append(found)
    if start.get("gpus_absent"):
        problems.append(f"no GPU readings: {shortened(start['gpus_absent'])}")
    try:
        return _assemble(start, rows, problems)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problems.append(f"{path.name}: rows that make no sense, all ignored ({shortened(error)})")
        return _assemble({}, [], problems)


def _assemble(
    start: dict[str, Any], rows: list[dict[str, Any]], problems: list[str]
) -> MachineSamples:
    cores: list[int] = list(start.get("cores", []))
    gpus: list[str] = list(start.get("gpus", []))
    pids = sorted({int(pid) for row in rows for pid in row["processes"]})
    table = np.full((2, len(pids), len(rows)), np.nan)
    cpu = np.full((len(rows), len(cores)), np.nan)
    gpu = np.full((len(GPU_READINGS), len(rows), len(gpus)), np.nan)
    for i, row in enumerate(rows):
        shares = row["cpu"][: len(cores)]
        cpu[i, : len(shares)] = shares
        for number, pid in enumerate(pids):
            reading = row["processes"].get(str(pid))
            if reading is not None:
                table[:, number, i] = reading["rss_bytes"], reading["cpu_s"]
        for device, reading in enumerate(row.get("gpu", [])[: len(gpus)]):
            for k, name in enumerate(GPU_READINGS):
                value = reading.get(name)
                gpu[k, i, device] = np.nan if value is None else value
    for readings in (table, cpu, gpu):
        readings[~np.isfinite(readings)] = np.nan
    return MachineSamples(
        times_ns=np.array([row["time_ns"] for row in rows], np.int64),
        cpu=cpu,
        cores=cores,
        rss_bytes={pid: table[0, i] for i, pid in enumerate(pids)},
        cpu_s={pid: table[1, i] for i, pid in enumerate(pids)},
        gpus=gpus,
        gpu=dict(zip(GPU_READINGS, gpu, strict=True)),
        problems=problems,
    )
