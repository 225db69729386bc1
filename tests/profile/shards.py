"""Read a shard in plain Python: the independent reading that the tests compare with."""

from __future__ import annotations

from pathlib import Path

import pyarrow.ipc as ipc

STEP, PROBE_ON, PROBE_OFF, WINDOW_ON, WINDOW_OFF, THREAD_END, ANCHOR, HIGH = range(1, 9)
PAYLOADS = {9: "cpu", 10: "callbacks", 11: "dropped", 12: "rss", 13: "process_cpu"}


def read_events(path: Path, names: list[tuple]) -> list[tuple]:
    """All events of a shard: (time_ns, "begin" | "end", name), or (time_ns, code) of the rest."""
    table = ipc.open_stream(path.read_bytes()).read_all()
    by_id = {row[0]: row[2] for row in names}
    now, high, events = 0, 0, []
    for delta, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
        if code == HIGH:
            high = delta
        elif code == ANCHOR:
            now, high = high << 32 | delta, 0
        elif code in PAYLOADS:
            events.append((now, PAYLOADS[code], high << 32 | delta))
            high = 0
        else:
            now += delta
            if code < 16:
                events.append((now, code))
            else:
                events.append((now, "end" if code & 1 else "begin", by_id[code >> 1]))
    return events


def read_off(path: Path, thread: int = 0) -> list[tuple[int, int]]:
    """(since when, ns) that a thread had no core, of the scheduler's shard."""
    table = ipc.open_stream(path.read_bytes()).read_all()
    high = index = begin = 0
    found = []
    for low, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
        if code == HIGH:
            high = low
            continue
        number, high = high << 32 | low, 0
        if code == 1:
            index = number
        elif code == 5:
            begin = number
        elif code == 6 and index == thread:
            found.append((begin, number))
    return found
