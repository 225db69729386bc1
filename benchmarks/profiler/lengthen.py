"""A long session out of a short one: its steady state repeated, so that reports can be measured.

    python -m benchmarks.profiler.lengthen SHORT LONG --rows 87_000_000

The events between two begins of an operation are repeated, with their times shifted, and so are
what the scheduler and the sampler of Python stacks said meanwhile. The new session says so in its
command. Of the process with most events; others are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from redline.profile import _sweep, layout
from redline.profile.analyse.decoded import row_times
from redline.profile.read.framing import BATCH_ROWS
from redline.profile.read.shards import Rows, read_rows
from redline.profile.reader import Process, open_session
from redline.profile.seal import seal

ROWS_OF_BATCH = 400  # about as many as the recorder writes at once

__all__ = ["lengthen", "main"]


def lengthen(short: Path, long: Path, rows: int, operation: str) -> int:
    """Write the long session; how often the steady state is in it.

    Args:
        short: directory of a session.
        long: new directory.
        rows: that the new session has, at least.
        operation: from a begin of which to another the events are repeated.
    """
    session = open_session(short)
    process = max(session.processes, key=lambda p: sum(s.path.stat().st_size for s in p.sources))
    shutil.copytree(short, long, ignore=shutil.ignore_patterns("processes"))
    directory = long / "processes" / process.directory.name
    shutil.copytree(process.directory, directory)
    source = process.sources[0].path
    shard = read_rows(source)
    times = row_times((shard.deltas, shard.codes))
    (number,) = [
        n.id for n in process.names.values() if n.name == operation and n.kind == "operation"
    ]
    begins = np.flatnonzero(shard.codes == 2 * number)
    first, last = int(begins[len(begins) // 10]), int(begins[-1])
    begin_ns, end_ns = int(times[first]), int(times[last])
    times_over = max(-(-(rows - len(shard.codes)) // (last - first)), 0) + 1
    step_ns = end_ns - begin_ns
    with (directory / source.name).open("wb") as file:
        file.write(_sweep.arrow_schema())
        everything = shard.deltas, shard.codes
        _write(file, everything, slice(0, first), times, 0)
        for turn in range(times_over):
            _write(file, everything, slice(first, last), times, turn * step_ns)
        later_ns = (times_over - 1) * step_ns
        _write(file, everything, slice(last, len(times)), times, later_ns)
    between = range(begin_ns, end_ns)
    _lengthen_ticks(process, directory, between, times_over)
    _lengthen_stacks(directory / layout.STACKS, between, times_over)
    _tell(directory / "process.jsonl", times_over, later_ns, (times_over - 1) * (last - first))
    manifest = json.loads((long / "session.json").read_text())
    manifest["command"] = [*manifest["command"], f"(its steady state {times_over} times over)"]
    (long / "session.json").write_text(json.dumps(manifest))
    seal(long)
    return times_over


def _write(
    file: BinaryIO, rows: Rows, part: slice, times: NDArray[np.int64], later_ns: int
) -> None:
    """Some rows, shifted in time, in batches that begin with an absolute time."""
    upto = part.start
    while upto < part.stop:
        at, upto = upto, min(upto + ROWS_OF_BATCH, part.stop)
        upto -= int(rows[1][upto - 1] == layout.CODE_HIGH)  # its number follows in the next row
        deltas, codes = rows[0][at:upto].copy(), rows[1][at:upto]
        anchors = np.flatnonzero(codes == layout.CODE_ANCHOR)
        anchors = anchors[anchors > 0]
        absolute = (deltas[anchors - 1].astype(np.int64) << 32) + deltas[anchors] + later_ns
        deltas[anchors - 1], deltas[anchors] = absolute >> 32, absolute & 0xFFFFFFFF
        begin = int(times[at - 1]) + later_ns if at else 0
        if at == part.start and at:  # what comes before it here is another row than before it there
            begin, deltas[0] = int(times[at]) + later_ns, 0
        head = np.array([begin >> 32, begin & 0xFFFFFFFF], np.uint32)
        marks = np.array([layout.CODE_HIGH, layout.CODE_ANCHOR], np.uint16)
        _batch(file, np.concatenate([head, deltas]), np.concatenate([marks, codes]))


def _batch(file: BinaryIO, deltas: NDArray[np.uint32], codes: NDArray[np.uint16]) -> None:
    for at in range(0, len(codes), BATCH_ROWS):
        part = deltas[at : at + BATCH_ROWS].tobytes(), codes[at : at + BATCH_ROWS].tobytes()
        file.write(_sweep.arrow_header(len(part[1]) // 2))
        for column in part:
            file.write(column + bytes(-len(column) % 8))


def _lengthen_ticks(process: Process, directory: Path, between: range, times_over: int) -> None:
    shard = process.scheduler
    if shard is None:
        return
    times = row_times((shard.deltas, shard.codes))
    with (directory / layout.SCHEDULER_SHARD).open("wb") as file:
        file.write(_sweep.arrow_schema())
        for part, later_ns in _turns(times, between, times_over):
            deltas, codes = shard.deltas[part].copy(), shard.codes[part]
            anchors = np.flatnonzero(codes == layout.CODE_ANCHOR)
            anchors = anchors[anchors > 0]
            absolute = (deltas[anchors - 1].astype(np.int64) << 32) + deltas[anchors] + later_ns
            deltas[anchors - 1], deltas[anchors] = absolute >> 32, absolute & 0xFFFFFFFF
            _batch(file, deltas, codes)


def _turns(
    times: NDArray[np.int64], between: range, times_over: int
) -> Iterator[tuple[slice, int]]:
    """(rows, how much later) of what is written, in order."""
    # An absolute time is in two rows: the first still has the time before.
    first, last = (int(np.searchsorted(times, t)) - 1 for t in (between.start, between.stop))
    yield slice(0, first), 0
    for turn in range(times_over):
        yield slice(first, last), turn * len(between)
    yield slice(last, len(times)), (times_over - 1) * len(between)


def _lengthen_stacks(path: Path, between: range, times_over: int) -> None:
    if not path.exists():
        return
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    known = [row for row in rows if row[0] != "at"]
    seen = [row for row in rows if row[0] == "at"]
    parts = (
        [row for row in seen if row[1] < between.start],
        [row for row in seen if row[1] in between],
        [row for row in seen if row[1] >= between.stop],
    )
    with path.open("w") as file:
        for row in known:
            file.write(json.dumps(row) + "\n")
        for part, turns in zip(parts, ((0,), range(times_over), (times_over - 1,)), strict=True):
            for turn in turns:
                for kind, time_ns, *rest in part:
                    later = [kind, time_ns + turn * len(between), *rest]
                    file.write(json.dumps(later) + "\n")


def _tell(path: Path, times_over: int, later_ns: int, more_rows: int) -> None:
    """What the process says of its end."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("event") == "end":
            seconds = (line["time_ns"] - lines[0]["base_ns"]) / 1e9
            line["cpu_s"] *= (seconds + later_ns / 1e9) / seconds
            line["time_ns"] += later_ns
            line["events"] += more_rows
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    """Write one."""
    parser = argparse.ArgumentParser(description="A long session out of a short one.")
    parser.add_argument("short", type=Path)
    parser.add_argument("long", type=Path)
    parser.add_argument("--rows", type=int, default=87_749_581, help="at least")
    parser.add_argument("--operation", default="collection", help="that begins each iteration")
    options = parser.parse_args()
    turns = lengthen(options.short, options.long, options.rows, options.operation)
    sys.stdout.write(f"{options.long}: the steady state {turns} times over\n")


if __name__ == "__main__":
    main()
