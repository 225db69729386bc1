"""A session as a trace file for https://ui.perfetto.dev or chrome://tracing.

Trace Event Format (JSON): a track per thread with operations and native calls nested, phases on a
track of their own, resident memory and CPU time as counters. Timestamps are microseconds of
CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from redline.errors import ConfigError
from redline.profile import layout, levels
from redline.profile.analyse.decoded import decode, row_times
from redline.profile.reader import Process, Rows, Session, Source

__all__ = ["COUNTERS", "timed_rows", "write_trace"]

PHASE_TRACK = 1_000_000
FIRST_CODE = 16
# Of the monitor: (code, title, unit, how many of these one is).
COUNTERS = (
    (layout.CODE_RSS, "resident memory", "bytes", 1024),
    (layout.CODE_PROCESS_CPU, "CPU time", "us", 1),
)


def write_trace(session: Session, output: Path) -> int:
    """Write all events of a session.

    Args:
        session: an open session.
        output: a `.json` file, replaced if it exists.

    Returns:
        How many trace events were written.

    Raises:
        ConfigError: if the file cannot be written.
    """
    count = 0
    try:
        with output.open("w") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            for process in session.processes:
                for event in _process_events(process):
                    _write(file, event, first=count == 0)
                    count += 1
            file.write("\n]}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}. Give another file") from error
    return count


def _write(file: TextIO, event: dict[str, Any], *, first: bool) -> None:
    file.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))


def _process_events(process: Process) -> Iterator[dict[str, Any]]:
    pid = process.pid
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process.name}}
    for shard in process.sources:
        name = "main thread" if shard.index == process.main_shard else f"thread {shard.index}"
        track = {"pid": pid, "tid": shard.index}
        yield {"ph": "M", **track, "name": "thread_name", "args": {"name": name}}
        yield from _thread_events(process, shard)
    yield from _counter_events(process)


def timed_rows(process: Process, source: Source) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """The pieces of a shard with the time of each row, CLOCK_MONOTONIC ns."""
    now = 0
    for rows in source.pieces():
        times = row_times(rows, now)
        now = int(times[-1])
        yield times + process.base_ns, rows
    if source.problem is not None:
        process.note(f"{source.path.name}: {source.problem}")


def _thread_events(process: Process, source: Source) -> Iterator[dict[str, Any]]:
    open_ids: list[int] = []
    for times, (_, codes) in timed_rows(process, source):
        yield from _row_events(process, source.index, open_ids, times, codes)


def _row_events(
    process: Process,
    tid: int,
    open_ids: list[int],
    times_ns: NDArray[np.int64],
    codes: NDArray[np.uint16],
) -> Iterator[dict[str, Any]]:
    pid = process.pid
    for time_us, code in zip((times_ns / 1000).tolist(), codes.tolist(), strict=True):
        if code < FIRST_CODE:
            if code == layout.CODE_STEP:
                yield {"ph": "i", "pid": pid, "tid": tid, "ts": time_us, "name": "step", "s": "t"}
            continue
        name = process.names.get(code >> 1)
        if name is None:
            continue
        track = PHASE_TRACK if name.kind == "phase" else tid
        event = {"pid": pid, "tid": track, "ts": time_us, "name": name.name}
        if code & 1:
            if name.id in open_ids:
                open_ids.remove(name.id)
                yield {"ph": "E", **event}
        else:
            open_ids.append(name.id)
            category = levels.LEVELS[name.level] if name.kind == "call" else name.kind
            yield {"ph": "B", **event, "cat": category}


def _counter_events(process: Process) -> Iterator[dict[str, Any]]:
    if process.monitor is None:
        return
    monitor = decode(process, process.monitor)
    for code, title, unit, scale in COUNTERS:
        chosen = monitor.special_codes == code
        for time_ns, value in zip(
            monitor.special_times[chosen].tolist(),
            monitor.special_values[chosen].tolist(),
            strict=True,
        ):
            yield {
                "ph": "C",
                "pid": process.pid,
                "ts": (time_ns + process.base_ns) / 1000,
                "name": title,
                "args": {unit: value * scale},
            }
