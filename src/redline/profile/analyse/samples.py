"""The readings taken beside the program: CPU per core, memory per process, GPUs as a monitor sees.

A reading belongs to the time since the one before it.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.plain_text import shortened
from redline.profile import layout
from redline.profile.read.notes import has_numbers
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
    # Of each process only the readings that have it: most of many thousand live for a few.
    readings: dict[int, NDArray[np.int64]]  # {pid: [M]} which of the N
    rss_bytes: dict[int, NDArray[np.float64]]  # {pid: [M]}
    cpu_s: dict[int, NDArray[np.float64]]  # {pid: [M]} CPU time since the process began
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
        text = read_whole(path)
    except OSError as error:
        return _assemble({}, [], [str(error)])
    for line in text.splitlines():
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
        _refuse_wide(start, len(rows), len(text))
        return _assemble(start, rows, problems)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problems.append(f"{path.name}: rows that make no sense, all ignored ({shortened(error)})")
        return _assemble({}, [], problems)


def _refuse_wide(start: dict[str, Any], rows: int, characters: int) -> None:
    """Tables have a place for each core and GPU in each row, whatever stands there.

    Raises:
        ValueError: if they would have more of them than the file has characters.
    """
    columns = len(start.get("cores", [])) + len(GPU_READINGS) * len(start.get("gpus", []))
    if columns * rows > characters:
        raise ValueError(f"it claims more cores and GPUs than {rows:,} rows of its size tell of")


def _assemble(
    start: dict[str, Any], rows: list[dict[str, Any]], problems: list[str]
) -> MachineSamples:
    cores: list[int] = list(start.get("cores", []))
    gpus: list[str] = list(start.get("gpus", []))
    cpu = np.full((len(rows), len(cores)), np.nan)
    gpu = np.full((len(GPU_READINGS), len(rows), len(gpus)), np.nan)
    for i, row in enumerate(rows):
        shares = row["cpu"][: len(cores)]
        cpu[i, : len(shares)] = shares
        for device, reading in enumerate(row.get("gpu", [])[: len(gpus)]):
            for k, name in enumerate(GPU_READINGS):
                value = reading.get(name)
                gpu[k, i, device] = np.nan if value is None else value
    if rows and has_numbers(rows[-1], "lost"):
        problems = [*problems, f"readings of the machine that were lost: {rows[-1]['lost']:,}"]
    found = _by_process(rows)
    tables = {pid: _known(np.frombuffer(table)).reshape(-1, 2) for pid, (_, table) in found.items()}
    return MachineSamples(
        times_ns=np.array([row["time_ns"] for row in rows], np.int64),
        cpu=_known(cpu),
        cores=cores,
        readings={pid: np.frombuffer(places, np.int64) for pid, (places, _) in found.items()},
        rss_bytes={pid: table[:, 0] for pid, table in tables.items()},
        cpu_s={pid: table[:, 1] for pid, table in tables.items()},
        gpus=gpus,
        gpu=dict(zip(GPU_READINGS, _known(gpu), strict=True)),
        problems=problems,
    )


def _by_process(rows: list[dict[str, Any]]) -> dict[int, tuple[array[int], array[float]]]:
    """{pid: ([M] which rows have it, [2 * M] memory and CPU time in turn)}."""
    found: dict[int, tuple[array[int], array[float]]] = {}
    for i, row in enumerate(rows):
        for pid, reading in row["processes"].items():
            if reading is not None:
                places, table = found.setdefault(int(pid), (array("q"), array("d")))
                table.extend((reading["rss_bytes"], reading["cpu_s"]))
                places.append(i)
    return dict(sorted(found.items()))


def _known(readings: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN in place of what is no number."""
    readings[~np.isfinite(readings)] = np.nan
    return readings
