"""A session as a trace file for https://ui.perfetto.dev or chrome://tracing.

Trace Event Format (JSON): a track per thread with operations and native calls nested, phases on a
track of their own, resident memory as a counter. Timestamps are microseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from redline.errors import ConfigError
from redline.profile import layout, levels
from redline.profile.analyse.timeline import decode
from redline.profile.reader import Process, Session, Shard

__all__ = ["write_trace"]

PHASE_TRACK = 1_000_000
FIRST_CODE = 16


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
    for shard in process.threads:
        name = "main thread" if shard.index == 0 else f"thread {shard.index}"
        track = {"pid": pid, "tid": shard.index}
        yield {"ph": "M", **track, "name": "thread_name", "args": {"name": name}}
        yield from _thread_events(process, shard)
    yield from _memory_events(process)


def row_times(shard: Shard) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[N] ns since the process's base of each row; payload rows have the time before them."""
    codes, deltas = shard.codes, shard.deltas.astype(np.int64)
    timed = (codes < layout.CODE_ANCHOR) | (codes == layout.CODE_BEAT) | (codes >= FIRST_CODE)
    running = np.cumsum(np.where(timed, deltas, 0))
    anchors = np.flatnonzero(codes == layout.CODE_ANCHOR)
    if len(anchors) == 0:
        return running
    absolute = (deltas[anchors - 1] << 32) + deltas[anchors]
    which = np.clip(np.searchsorted(anchors, np.arange(len(codes)), side="right") - 1, 0, None)
    return absolute[which] + running - running[anchors][which]


def _thread_events(process: Process, shard: Shard) -> Iterator[dict[str, Any]]:
    times = ((row_times(shard) + process.base_ns) / 1000).tolist()
    pid, tid = process.pid, shard.index
    open_ids: list[int] = []
    for time_us, code in zip(times, shard.codes.tolist(), strict=True):
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


def _memory_events(process: Process) -> Iterator[dict[str, Any]]:
    if process.monitor is None:
        return
    monitor = decode(process, process.monitor)
    chosen = monitor.special_codes == layout.CODE_RSS
    for time_ns, kib in zip(
        monitor.special_times[chosen].tolist(),
        monitor.special_values[chosen].tolist(),
        strict=True,
    ):
        yield {
            "ph": "C",
            "pid": process.pid,
            "ts": (time_ns + process.base_ns) / 1000,
            "name": "resident memory",
            "args": {"bytes": kib * 1024},
        }
