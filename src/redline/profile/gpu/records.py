"""GPU records as arrays, converted in bulk from what a collector wrote.

Kineto writes the Trace Event Format: microseconds since `baseTimeNanoseconds`, Unix time, with
three decimals, so that whole nanoseconds are exact. Here they are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.errors import SessionError
from redline.plain_text import shortened, shown
from redline.profile import layout
from redline.profile.read.regular import read_whole
from redline.profile.reader import Process

KINDS = ("kernel", "copy", "set", "runtime", "driver", "graph", "sync")
KERNEL, COPY, SET, RUNTIME, DRIVER, GRAPH, SYNC = range(len(KINDS))
ON_DEVICE = (KERNEL, COPY, SET)
WINDOW_FILE = re.compile(r"gpu-\d+\.json")
CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": SET,
    "cuda_runtime": RUNTIME,
    "cuda_driver": DRIVER,
    "hip_runtime": RUNTIME,
}
_NO_TRACE = (
    *(OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError),
    RecursionError,  # nested without end
)

__all__ = ["KINDS", "GpuRecords", "GpuWindow", "read_kineto", "read_windows", "windows_of"]


@dataclass(frozen=True, slots=True)
class GpuRecords:
    """Records of one window, in order of their begin."""

    kinds: NDArray[np.uint8]  # [N] index into `KINDS`
    begin_ns: NDArray[np.int64]  # [N] CLOCK_MONOTONIC
    end_ns: NDArray[np.int64]  # [N]
    device: NDArray[np.int64]  # [N], -1 for calls on the CPU
    stream: NDArray[np.int64]  # [N], -1 for calls on the CPU
    correlation: NDArray[np.int64]  # [N] same for a call and what it launched, 0 for none


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """A stretch of time in which the GPU was observed."""

    begin_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    records: GpuRecords


class _Nanoseconds(int):
    """A number of microseconds with decimals, read without rounding."""


def _exact(text: str) -> Any:
    whole, _, decimals = text.partition(".")
    if len(decimals) > 3 or "e" in text or "E" in text:
        return float(text)
    return _Nanoseconds(int(whole + decimals.ljust(3, "0")))


def _ns(value: Any) -> int:
    if isinstance(value, _Nanoseconds):
        return int(value)
    return round(value * 1000)


def read_kineto(path: Path, unix_offset_ns: int) -> GpuRecords:
    """Convert a trace.

    Args:
        path: the file.
        unix_offset_ns: Unix time minus CLOCK_MONOTONIC.

    Raises:
        SessionError: if it is cut short, or no trace.
    """
    try:
        trace = json.loads(read_whole(path), parse_float=_exact)
        base_ns = int(trace.get("baseTimeNanoseconds", 0)) - unix_offset_ns
        rows = [row for e in trace["traceEvents"] if (row := _row(e, base_ns)) is not None]
        rows.sort(key=lambda row: row[1])
        columns = list(zip(*rows, strict=True)) or [()] * 6
        return GpuRecords(
            np.array(columns[0], np.uint8), *(np.array(column, np.int64) for column in columns[1:])
        )
    except _NO_TRACE as error:
        raise SessionError(
            f"{path.name}: cut short or no Kineto trace ({shortened(error)})"
        ) from error


def _row(event: dict[str, Any], base_ns: int) -> tuple[int, int, int, int, int, int] | None:
    category = event.get("cat")
    kind = SYNC if category == "cuda_sync" else CATEGORIES.get(str(category))
    if event.get("ph") != "X" or kind is None or category == "cuda_sync":
        return None  # a synchronization's own record repeats the call that waited
    name, args = str(event["name"]), event.get("args", {})
    begin = base_ns + _ns(event["ts"])
    device, stream = (args["device"], args["stream"]) if kind in ON_DEVICE else (-1, -1)
    if kind in (RUNTIME, DRIVER):
        if "Synchronize" in name:
            kind = SYNC
        elif "GraphLaunch" in name:
            kind = GRAPH
    correlation = int(args.get("correlation", 0))
    return kind, begin, begin + _ns(event["dur"]), device, stream, correlation


def windows_of(process: Process) -> list[GpuWindow]:
    """The windows of a process; what went wrong is noted there."""
    windows, problems = read_windows(process)
    for problem in problems:
        process.note(problem)
    return windows


def read_windows(process: Process) -> tuple[list[GpuWindow], list[str]]:
    """The windows of a process, and what went wrong or was not there."""
    path = process.directory / layout.GPU_NOTES
    windows: list[GpuWindow] = []
    problems: list[str] = []
    if not os.path.lexists(path):
        return windows, problems
    try:
        lines = read_whole(path).splitlines()
    except OSError as error:
        return windows, [f"{path.name} cannot be read ({shortened(error)})"]
    for line in lines:
        try:
            note = json.loads(line)
            if "reason" in note:
                problems.append(f"no GPU records: {shortened(note['reason'])}")
                continue
            times = [int(note[key]) for key in ("begin_ns", "end_ns", "unix_offset_ns")]
            if not WINDOW_FILE.fullmatch(note["file"]):
                raise ValueError(f"{shown(note['file'])} is no file of this process")
            records = read_kineto(process.directory / note["file"], times[2])
            windows.append(GpuWindow(times[0], times[1], records))
        except (json.JSONDecodeError, RecursionError):
            problems.append(f"{path.name}: a torn line, ignored")
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            problems.append(
                f"{path.name}: a line that makes no sense, ignored ({shortened(error)})"
            )
        except SessionError as error:
            problems.append(str(error))
    return windows, problems
