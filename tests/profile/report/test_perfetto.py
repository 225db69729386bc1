"""Perfetto traces: bytes by hand, and a whole session read back by a small decoder of our own.

The field numbers were compared once with the `perfetto` package's own messages, which read the file
without an unknown field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redline.errors import ConfigError
from redline.profile import layout
from redline.profile.reader import open_session
from redline.profile.report.perfetto import _stamps, block, number, varint, write_perfetto
from redline.profile.report.trace import row_times

Message = dict[int, list[Any]]


def decode(raw: bytes) -> Message:
    """Fields of a message: numbers, and bytes for what has a length."""
    fields: Message = {}
    at = 0

    def take() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = take()
        if key & 7 == 0:
            fields.setdefault(key >> 3, []).append(take())
        else:
            assert key & 7 == 2
            length = take()
            fields.setdefault(key >> 3, []).append(raw[at : at + length])
            assert at + length <= len(raw)
            at += length
    return fields


def test_bytes_by_hand() -> None:
    """300 = 0b10_0101100: low seven bits first, with the high bit set as more follow."""
    assert varint(0) == b"\x00"
    assert varint(300) == b"\xac\x02"
    assert number(8, 300) == b"\x40\xac\x02"
    assert number(60, 1) == b"\xe0\x03\x01"
    assert block(2, "ab") == b"\x12\x02ab"


def test_stamps_are_the_same_all_at_once_and_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for low, high in ((0, 10), (100, 20_000), (2**35, 2**42 - 1), (2**35, 2**36), (2**55, 2**62)):
        times = np.sort(rng.integers(low, high, 50))
        assert _stamps(times) == [number(8, each) for each in times.tolist()]
    assert _stamps(np.empty(0, np.int64)) == []


def test_a_session_reads_back(profiled: Any) -> None:
    """Slices with their names, categories and times; phases apart; steps; counters."""
    profiled.run(
        """
import threading, time, mujoco
from redline import profile
def work():
    with profile.phase("p"), profile.operation("simulation"):
        mujoco.spin(1_000_000)
        profile.step()
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
time.sleep(0.6)
"""
    )
    session = open_session(profiled.session)
    output = profiled.directory / "trace.pftrace"
    count = write_perfetto(session, output)
    packets = [decode(raw) for raw in decode(output.read_bytes())[1]]
    tracks = [decode(packet[60][0]) for packet in packets if 60 in packet]
    process = session.processes[0]
    root = decode(tracks[0][3][0])
    assert (root[1], root[6]) == ([process.pid], [process.name.encode()])
    threads = {t[1][0]: decode(t[4][0]) for t in tracks if 4 in t}
    assert [t[5][0] for t in threads.values()] == [b"main thread", b"thread 1"]
    phases = next(t[1][0] for t in tracks if t.get(2) == [b"phases"])
    counters = {t[1][0]: t[2][0] for t in tracks if 8 in t}

    names: dict[int, dict[int, bytes]] = {}
    categories: dict[int, dict[int, bytes]] = {}
    slices: list[tuple[int, bytes, bytes, int]] = []
    open_slices: dict[int, list[Any]] = {}
    steps, values, events = 0, 0, 0
    for packet in packets:
        sequence = packet.get(10, [0])[0]
        if 12 in packet:
            assert packet[13] == [3]  # the state of names begins here
            interned = decode(packet[12][0])
            categories[sequence] = {e[1][0]: e[2][0] for e in map(decode, interned[1])}
            names[sequence] = {e[1][0]: e[2][0] for e in map(decode, interned[2])}
        if 11 not in packet:
            continue
        events += 1
        event = decode(packet[11][0])
        kind, track, time_ns = event[9][0], event[11][0], packet[8][0]
        if kind == 1:
            assert packet[13] == [2]
            name = names[sequence][event[10][0]]
            open_slices.setdefault(track, []).append(
                (name, categories[sequence][event[3][0]], time_ns)
            )
        elif kind == 2:
            name, category, since = open_slices[track].pop()
            slices.append((track, name, category, time_ns - since))
        elif kind == 3:
            assert event[23] == [b"step"]
            steps += 1
        else:
            assert kind == 4
            assert track in counters
            values += 1
    assert count == events
    assert not any(open_slices.values())
    assert steps == 2
    assert values > 0
    assert set(counters.values()) == {b"resident memory", b"CPU time"}
    found = [(t, n, c) for t, n, c, _ in slices]
    assert sum(t == phases and n == b"p" and c == b"phase" for t, n, c in found) == 2
    for track in threads:
        assert found.count((track, b"simulation", b"operation")) == 1
        assert found.count((track, b"mujoco.spin", b"simulator")) == 1
    assert all(d >= 1_000_000 for _, name, _, d in slices if name == b"mujoco.spin")
    shard = process.threads[0]
    times = row_times((shard.deltas, shard.codes)) + process.base_ns
    times = times[shard.codes == layout.CODE_STEP]
    stamps = [p[8][0] for p in packets if 11 in p and decode(p[11][0])[9] == [3]]
    assert times[0] in stamps


def test_a_file_that_cannot_be_written_is_refused(profiled: Any) -> None:
    profiled.run("pass")
    with pytest.raises(ConfigError, match="cannot write"):
        write_perfetto(open_session(profiled.session), profiled.directory / "none" / "t.pftrace")
