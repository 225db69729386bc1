"""A session as a Perfetto trace: packets of protobuf's wire format, written without a library.

Field numbers are those of perfetto/protos/trace (`Trace`, `TracePacket`, `TrackDescriptor`,
`TrackEvent`, `InternedData`), which its authors promise to keep. Each thread is a track with its
operations and native calls nested, phases have a track per process, memory and CPU are counters.
Timestamps are ns of CLOCK_MONOTONIC. Names are interned per sequence, one sequence per track.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from redline.errors import ConfigError
from redline.profile import layout, levels
from redline.profile.analyse.timeline import decode
from redline.profile.reader import Name, Process, Session, Source
from redline.profile.report.trace import COUNTERS, FIRST_CODE, timed_rows

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
STATE_CLEARED, NEEDS_STATE = 1, 2

__all__ = ["write_perfetto"]


def write_perfetto(session: Session, output: Path) -> int:
    """Write all events of a session.

    Args:
        session: an open session.
        output: a file, replaced if it exists.

    Returns:
        How many slices' begins and ends, instants and counter values were written.

    Raises:
        ConfigError: if the file cannot be written.
    """
    count = 0
    uuids = iter(range(1, 1 << 62))
    try:
        with output.open("wb") as file:
            for process in session.processes:
                for data, events in _process(process, uuids):
                    file.write(data)
                    count += events
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}. Give another file") from error
    return count


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, the low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of wire type 0."""
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    """A field of wire type 2: text or a message."""
    raw = content.encode(errors="replace") if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def _packet(content: bytes) -> bytes:
    return block(1, content)


def _process(process: Process, uuids: Iterator[int]) -> Iterator[tuple[bytes, int]]:
    own = next(uuids)
    about = number(1, process.pid) + block(6, process.name)
    yield _packet(block(60, number(1, own) + block(3, about))), 0
    phases = next(uuids)
    if any(name.kind == "phase" for name in process.names.values()):
        yield _packet(block(60, number(1, phases) + block(2, "phases") + number(5, own))), 0
    for shard in process.sources:
        track = next(uuids)
        name = "main thread" if shard.index == process.main_shard else f"thread {shard.index}"
        # Perfetto takes the thread whose id is the process's for its main thread.
        main = process.main_shard or 0
        place = {main: 0, 0: main}.get(shard.index, shard.index)
        thread = number(1, process.pid) + number(2, process.pid + place) + block(5, name)
        yield _packet(block(60, number(1, track) + number(5, own) + block(4, thread))), 0
        yield from _thread(process, shard, track, phases)
    yield from _counters(process, own, uuids)


def _thread(
    process: Process, shard: Source, track: int, phases: int
) -> Iterator[tuple[bytes, int]]:
    """The events of a thread; `track` numbers its sequence, too."""
    sequence = number(10, track) + number(13, NEEDS_STATE)
    yield _packet(number(10, track) + number(13, STATE_CLEARED | NEEDS_STATE) + _names(process)), 0
    events: dict[int, bytes] = {}
    for name in process.names.values():
        target = phases if name.kind == "phase" else track
        events[2 * name.id] = _slice(SLICE_BEGIN, target, name) + sequence
        events[2 * name.id + 1] = _slice(SLICE_END, target, None) + sequence
    step = number(9, INSTANT) + number(11, track) + block(23, "step")
    events[layout.CODE_STEP] = block(11, step) + sequence
    open_ids: dict[int, int] = {}
    for times, (_, codes) in timed_rows(process, shard):
        packets: list[bytes] = []
        for code, stamp in zip(codes.tolist(), _stamps(times), strict=True):
            event = events.get(code)
            if event is None or not _fits(code, open_ids):
                continue
            packets.append(b"\n" + varint(len(stamp) + len(event)) + stamp + event)
        yield b"".join(packets), len(packets)


def _fits(code: int, open_ids: dict[int, int]) -> bool:
    """Whether an end has its begin: what began before the window has none."""
    if code < FIRST_CODE:
        return True
    depth = open_ids.get(code >> 1, 0)
    if code & 1 and depth == 0:
        return False
    open_ids[code >> 1] = depth - 1 if code & 1 else depth + 1
    return True


def _stamps(times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[bytes]:
    """The `timestamp` field of each row, all bytes at once where they are equally many."""
    groups = max((int(times.max(initial=0)).bit_length() + 6) // 7, 1)
    if len(times) == 0 or int(times.min()).bit_length() <= 7 * (groups - 1):
        return [number(8, each) for each in times.tolist()]
    shifts = 7 * np.arange(groups)
    matrix = np.empty((len(times), groups + 1), np.uint8)
    matrix[:, 0] = 8 << 3
    matrix[:, 1:] = (times[:, None] >> shifts & 0x7F) | 0x80
    matrix[:, -1] &= 0x7F
    raw, width = matrix.tobytes(), groups + 1
    return [raw[i : i + width] for i in range(0, len(raw), width)]


def _slice(kind: int, track: int, name: Name | None) -> bytes:
    content = number(9, kind) + number(11, track)
    if name is not None:
        content += number(3, _category(name) + 1) + number(10, name.id)
    return block(11, content)


CATEGORIES = (*levels.LEVELS, *layout.KINDS)


def _category(name: Name) -> int:
    text = levels.LEVELS[name.level] if name.kind == "call" else name.kind
    return CATEGORIES.index(text)


def _names(process: Process) -> bytes:
    """All names of a process, and the categories, as `InternedData`."""
    content = b"".join(
        block(1, number(1, i + 1) + block(2, text)) for i, text in enumerate(CATEGORIES)
    )
    for name in process.names.values():
        text = f"{name.module}.{name.name}" if name.kind == "call" and name.module else name.name
        content += block(2, number(1, name.id) + block(2, text))
    return block(12, content)


def _counters(process: Process, own: int, uuids: Iterator[int]) -> Iterator[tuple[bytes, int]]:
    if process.monitor is None:
        return
    monitor = decode(process, process.monitor)
    for code, title, unit, scale in COUNTERS:
        chosen = monitor.special_codes == code
        if not chosen.any():
            continue
        track = next(uuids)
        about = number(1, track) + number(5, own) + block(2, title) + block(8, block(6, unit))
        packets = [_packet(block(60, about))]
        times = (monitor.special_times[chosen] + process.base_ns).tolist()
        for time_ns, value in zip(times, monitor.special_values[chosen].tolist(), strict=True):
            event = number(9, COUNTER) + number(11, track) + number(30, int(value) * scale)
            packets.append(_packet(number(8, time_ns) + number(10, track) + block(11, event)))
        yield b"".join(packets), len(packets) - 1
