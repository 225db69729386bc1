"""Sessions that were damaged, or made up by somebody: read as far as they go, or refused."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from redline.errors import SessionError
from redline.profile import layout, levels
from redline.profile.analyse.samples import MachineSamples, read_machine_samples
from redline.profile.analyse.shares import read_sampled, with_shares
from redline.profile.analyse.stacks import read_stacks
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.analyse.timeline import build_timeline
from redline.profile.analyse.transitions import begins_of, times_of_begins
from redline.profile.commands import main
from redline.profile.gpu.records import read_windows
from redline.profile.read import regular
from redline.profile.reader import open_session, read_shard
from redline.profile.record import json_lines
from redline.profile.report.text import render_text
from redline.profile.report.trace import write_trace

START = {"event": "start", "pid": 7, "parent_pid": 1, "name": "p", "base_ns": 1000}
NESTED = "[" * 100_000  # deeper than json follows
DEEP = b"[" * 500 + b"]" * 500  # which it follows, and what writes reports does not
END = {"event": "end", "time_ns": 2000, "cpu_s": 0.5, "dropped": 0}


def write_session(directory: Path, notes: list[Any], names: list[Any] | None = None) -> Path:
    """A session of one process, from the lines of its files; its directory."""
    process = directory / "processes" / "7-1000"
    process.mkdir(parents=True)
    manifest = {"format": layout.FORMAT, "version": layout.VERSION, "mode": "full"}
    (directory / "session.json").write_text(json.dumps(manifest))
    for file, rows in (("process", notes), ("names", names or [])):
        (process / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return process


def write_shard(path: Path, **columns: Any) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def report(directory: Path) -> Summary:
    session = open_session(directory)
    summary = with_shares(summarize(session), session)
    assert render_text(summary)
    json.dumps(summary.to_json(), allow_nan=False)
    write_trace(session, directory / "trace.json")
    return summary


@pytest.mark.parametrize(
    "manifest",
    [
        *(b"", b"\xff\xfe", b"[]", b"7", b"null", b'{"format": "redline-profile", "version": 1}'),
        pytest.param(NESTED.encode(), id="nested"),
        pytest.param(
            b'{"format": "redline-profile", "version": 1, "mode": "full", "cpus": %s}' % DEEP,
            id="deep",
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    tmp_path: Path, manifest: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "damaged"):
        write_session(tmp_path / name, [START])
    (tmp_path / "damaged" / "session.json").write_bytes(manifest)
    with pytest.raises(SessionError):
        open_session(tmp_path / "damaged")
    assert main(["sessions", str(tmp_path), "--format", "json"]) == 0
    damaged, whole = json.loads(capsys.readouterr().out)
    assert damaged["problem"]
    assert (whole["mode"], whole["problem"]) == ("full", "")


@pytest.mark.parametrize("name", ["session.json", "names.jsonl", "process.jsonl", layout.STACKS])
def test_a_file_of_a_terabyte_is_not_read(name: str, tmp_path: Path) -> None:
    """Sparse, so that it takes no room on the disk, but all of the memory of who reads it."""
    process = write_session(tmp_path, [START, END])
    path = (tmp_path if name == "session.json" else process) / name
    with path.open("wb") as file:
        file.truncate(10**12)
    if name == "session.json":
        with pytest.raises(SessionError, match="1,000,000,000,000 bytes"):
            open_session(tmp_path)
    else:
        session = open_session(tmp_path)
        if name == layout.STACKS:
            stacks = read_stacks(session.processes[0])
            assert stacks is not None
            assert len(stacks.times_ns) == 0
        assert session.problems or session.processes[0].problems


def test_a_session_without_processes_is_refused(tmp_path: Path) -> None:
    write_session(tmp_path, [START])
    (tmp_path / "processes").rename(tmp_path / "gone")
    with pytest.raises(SessionError, match="processes are missing"):
        open_session(tmp_path)


def test_lines_that_make_no_sense_are_named(tmp_path: Path) -> None:
    """Numbers for objects, and objects without what they need."""
    odd_notes = [7, [], {}, {"event": "start"}, {"event": "end"}, {"event": "metadata"}]
    odd_notes += [{"event": "metadata", "values": {"x": json.loads(DEEP)}}]
    odd_notes += [{**END, "time_ns": -1}, {**END, "time_ns": 1 << 70}, {**END, "cpu_s": "x"}]
    good = [9, "call", "spin", 3, "mujoco"]
    odd_names = [7, {}, [], [1], ["a", "call", "b", 1, None], [8, "call", "b", 8, None]]
    odd_names += [[-1, "call", "b", 1, None], [layout.MAX_IDS, "call", "b", 1, None]]
    odd_names += [[10, "verb", "b", 1, None], [10, ["call"], "b", 1, None]]
    odd_names += [[10, "call", 5, 1, None], [10, "call", "b", 1, 5], [10, "call", "b", -1, "m"]]
    write_session(tmp_path, [START, *odd_notes, END], [*odd_names, good])
    (process,) = open_session(tmp_path).processes
    assert list(process.names) == [9]
    assert process.end == END
    problems = [p for p in process.problems if "makes no sense" in p or "torn line" in p]
    assert len(problems) == len(odd_notes) + len(odd_names)
    assert process.metadata == {}
    assert report(tmp_path).processes[0].cpu_s == 0.5


LONG = int("9" * 400)  # which no float holds


@pytest.mark.parametrize(
    "note",
    [
        *({"event": "limit", "events_per_s": odd} for odd in (LONG, -1, math.nan, math.inf, 1e300)),
        *({**END, "cpu_s": odd} for odd in (LONG, -1, math.nan, math.inf, 1e300, True)),
        *(
            {"event": "counters", "names": ["n"], "absent": "", "counts": {"0": [odd]}}
            for odd in (LONG, -1, math.nan, math.inf, 1e300, "5")
        ),
    ],
    ids=lambda note: str(note)[:70],
)
def test_numbers_that_nothing_counts_up_to_are_named(
    note: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = tmp_path / "session"
    write_session(session, [START, END, note])
    (process,) = report(session).processes
    assert any("a line that makes no sense" in problem for problem in process.problems)
    assert process.cpu_s == 0.5
    assert main(["inspect-session", str(session)]) == 0
    assert main(["report", str(session), "--csv", str(tmp_path / "csv")]) == 0
    assert main(["sessions", str(tmp_path)]) == 0
    assert not re.search("(?i)infinity|nan[^a-z]", capsys.readouterr().out)


def test_numbers_that_can_be_are_kept(tmp_path: Path) -> None:
    counted = {"event": "counters", "names": ["n"], "absent": "", "counts": {"0": [2]}}
    write_session(tmp_path, [START, END, {"event": "limit", "events_per_s": 5}, counted])
    (process,) = open_session(tmp_path).processes
    assert process.event_limit == 5.0
    assert process.counted is not None
    assert process.counted.counts == {0: [2.0]}
    assert not process.problems


def test_a_process_of_which_nothing_is_known_is_named(tmp_path: Path) -> None:
    write_session(tmp_path, [])
    assert open_session(tmp_path).processes == []
    assert report(tmp_path).problems == ["7-1000: nothing says what it is"]


@pytest.mark.parametrize(
    "columns",
    [
        {"delta_ns": pa.array([1], pa.uint64()), "code": pa.array([3], pa.uint16())},
        {"delta_ns": pa.array(["x"]), "code": pa.array([3], pa.uint16())},
        {"other": pa.array([1])},
    ],
)
def test_a_shard_of_other_columns_is_named(tmp_path: Path, columns: Any) -> None:
    process = write_session(tmp_path, [START, END])
    write_shard(process / "thread-00000.arrow", **columns)
    write_shard(process / "thread-odd.arrow", **columns)
    assert any("no event file" in problem for problem in report(tmp_path).problems)


def test_any_damage_to_a_shard_is_survived(tmp_path: Path) -> None:
    """Bytes changed at random, lengths in the headers among them: no crash, no exception."""
    names = [
        [8, "operation", "o", 0, None],
        [9, "call", "c", 1, "torch"],
        [10, "phase", "p", 0, None],
    ]
    path = write_session(tmp_path, [START, END], names) / "thread-00000.arrow"
    chance = random.Random(1)
    rows = [(0, layout.CODE_HIGH), (0, layout.CODE_ANCHOR), (0, layout.CODE_WINDOW_ON)]
    rows += [(chance.randrange(9), chance.randrange(23)) for _ in range(300)]
    deltas, codes = zip(*rows, strict=True)
    write_shard(path, delta_ns=pa.array(deltas, pa.uint32()), code=pa.array(codes, pa.uint16()))
    whole = path.read_bytes()
    for number in range(600):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            place = chance.randrange(600 if chance.random() < 0.7 else len(damaged))
            damaged[place] = chance.randrange(256)
        path.write_bytes(damaged)
        assert len(read_shard(path).codes) <= len(rows)
        if number % 10 == 0:
            report(tmp_path)


def test_time_that_runs_backwards_ends_a_shard(tmp_path: Path) -> None:
    """Absolute times 5 and then 5 + 7 + 1; one that is earlier, or without its first half."""
    path = tmp_path / "thread-00000.arrow"
    high, anchor, step = layout.CODE_HIGH, layout.CODE_ANCHOR, layout.CODE_STEP
    good = [(0, high), (5, anchor), (7, step), (9, high), (1, layout.CODE_CALLBACKS)]
    for bad, kept in (
        ([(0, high), (13, anchor)], 7),
        ([(0, high), (11, anchor)], 6),
        ([(0, step), (13, anchor)], 6),
        ([(1 << 16, high), (13, anchor)], 7),
        ([(layout.LARGEST_HIGH, high), (13, anchor)], 6),
    ):
        deltas, codes = zip(*good, *bad, strict=True)
        write_shard(path, delta_ns=pa.array(deltas, pa.uint32()), code=pa.array(codes, pa.uint16()))
        shard = read_shard(path)
        assert len(shard.codes) == kept
        assert (shard.problem is None) == (kept == 7)


@pytest.mark.parametrize("file", ["../../secret.json", "/dev/zero", "", "gpu-00000.json/../x", 5])
def test_files_outside_of_a_session_are_not_read(tmp_path: Path, file: Any) -> None:
    process = write_session(tmp_path, [START, END])
    secret = {"baseTimeNanoseconds": 0, "traceEvents": []}
    (tmp_path / "processes" / "secret.json").write_text(json.dumps(secret))
    note = {"file": file, "begin_ns": 1, "end_ns": 2, "unix_offset_ns": 0}
    (process / layout.GPU_NOTES).write_text(json.dumps(note) + "\n7\n[]\n{}\n")
    windows, problems = read_windows(open_session(tmp_path).processes[0])
    assert windows == []
    assert len(problems) == 4
    report(tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        *({}, {"device": "x", "stream": 1}, {"device": 1 << 80, "stream": 1}, 7),
        pytest.param(NESTED, id="nested"),
    ],
)
def test_gpu_records_that_make_no_sense_are_named(tmp_path: Path, args: Any) -> None:
    process = write_session(tmp_path, [START, END])
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 1.0, "args": args}
    trace = {"baseTimeNanoseconds": 0, "traceEvents": [event]}
    (process / "gpu-00000.json").write_text(json.dumps(trace).replace(f'"{NESTED}"', NESTED))
    note = {"file": "gpu-00000.json", "begin_ns": 1, "end_ns": 2, "unix_offset_ns": 0}
    (process / layout.GPU_NOTES).write_text(f"{json.dumps(note)}\n{NESTED}\n")
    problems = report(tmp_path).problems
    assert any("no Kineto trace" in problem for problem in problems)
    assert any(f"{layout.GPU_NOTES}: a torn line" in problem for problem in problems)


def test_readings_and_samples_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    process = write_session(tmp_path, [START, END])
    rows = [{"event": "start", "cores": [0]}, 7, {"time_ns": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / layout.MACHINE_SAMPLES).write_text(f"{text}{NESTED}\n")
    samples = read_machine_samples(open_session(tmp_path))
    assert samples is not None
    assert len(samples.times_ns) == 0
    assert len(samples.problems) == 3
    codes = pa.array([0, 900, 1], pa.uint16())
    write_shard(process / layout.SAMPLES_SHARD, delta_ns=pa.array([5] * 3, pa.uint32()), code=codes)
    window = pa.array([layout.CODE_WINDOW_ON, layout.CODE_STEP], pa.uint16())
    write_shard(
        process / "thread-00000.arrow", delta_ns=pa.array([0, 900], pa.uint32()), code=window
    )
    assert {row.name for row in report(tmp_path).shares} >= {"backend"}


def peak_of_reading(session: Path, lines: list[Any]) -> tuple[MachineSamples, int]:
    """What these lines are read as, and the most bytes that it took at once."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in lines)
    (session / layout.MACHINE_SAMPLES).write_text(text)
    tracemalloc.start()
    found = read_machine_samples(open_session(session))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    return found, peak


def test_many_short_processes_take_the_memory_of_their_readings(tmp_path: Path) -> None:
    """4,000 processes in 2,000 readings, each in two: a table of all would have 128 MB."""
    write_session(tmp_path, [START, END])
    reading = {"rss_bytes": 5, "cpu_s": 0.5}
    rows: list[Any] = [{"event": "start", "cores": [0], "gpus": []}]
    for i in range(2000):
        pids = (2 * i, 2 * i + 1, 2 * i + 2, 2 * i + 3)
        rows.append({"time_ns": i, "cpu": [0.5], "processes": {str(p): reading for p in pids}})
    found, peak = peak_of_reading(tmp_path, rows)
    assert peak < 2**25
    assert not found.problems
    assert found.readings[100].tolist() == [49, 50]
    assert found.rss_bytes[100].tolist() == [5, 5]
    assert found.cpu_s[100].tolist() == [0.5, 0.5]


def test_readings_of_many_cores_take_the_memory_of_their_numbers(tmp_path: Path) -> None:
    """1,000 readings of 1,000 cores have 8 MB. As lists of numbers they had four times as much.

    Those of a day on a large machine are read though they exceed what other files may have.
    """
    write_session(tmp_path, [START, END])
    shares = [k / 1000 for k in range(1000)]
    rows = [{"time_ns": i, "cpu": shares, "processes": {}} for i in range(1000)]
    found, peak = peak_of_reading(tmp_path, [{"event": "start", "cores": [*range(1000)]}, *rows])
    assert peak < 2**24
    assert not found.problems
    assert found.cpu[999].tolist() == shares


def test_readings_may_be_larger_than_a_file_that_is_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a line has a limit, here of 60 bytes: one of 200 is left out, and said once."""
    write_session(tmp_path, [START, END])
    session = open_session(tmp_path)
    monkeypatch.setattr(regular, "LARGEST_TEXT", 100)
    monkeypatch.setattr(regular, "LONGEST_LINE", 60)
    rows = ['{"time_ns":' + time_ns + ',"cpu":[0.5],"processes":{}}' for time_ns in "345"]
    lines = ['{"event":"start","cores":[0]}', *rows, "[" + " " * 198 + "]", rows[0]]
    (tmp_path / layout.MACHINE_SAMPLES).write_text("\n".join(lines))
    found = read_machine_samples(session)
    assert found is not None
    assert found.times_ns.tolist() == [3, 4, 5, 3]
    assert found.problems == ["samples.jsonl: a torn line, ignored"]


@pytest.mark.parametrize("claimed", ["cores", "gpus"])
def test_readings_of_more_cores_than_they_tell_of_are_refused(claimed: str, tmp_path: Path) -> None:
    """1,000 rows with a place for each of 100,000 cores would have 800 MB."""
    write_session(tmp_path, [START, END])
    row = {"time_ns": 1, "cpu": [], "processes": {}}
    found, peak = peak_of_reading(
        tmp_path, [{"event": "start", claimed: [0] * 100_000}, *[row] * 1000]
    )
    assert peak < 2**25
    assert len(found.times_ns) == 0
    assert any("more cores and GPUs than" in problem for problem in found.problems)


def test_numbers_that_json_has_not_do_not_end_the_page(tmp_path: Path) -> None:
    """Of two readings of a core, infinity and a half, the second is shown."""
    session = tmp_path / "session"
    write_session(session, [START, END])
    manifest = json.loads((session / "session.json").read_text())
    manifest |= {"cpus": math.nan, "python": math.inf, "command": 5}
    (session / "session.json").write_text(json.dumps(manifest))
    reading = {"rss_bytes": math.inf, "cpu_s": math.nan}
    rows: list[Any] = [{"event": "start", "cores": [0], "gpus": ["g"]}]
    for time_ns, share in ((1000, math.inf), (2000, 0.5)):
        row = {"time_ns": time_ns, "cpu": [share], "processes": {"7": reading}}
        rows.append({**row, "gpu": [{"power_w": -math.inf}]})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (session / layout.MACHINE_SAMPLES).write_text(text)
    samples = read_machine_samples(open_session(session))
    assert samples is not None
    np.testing.assert_array_equal(samples.cpu, [[math.nan], [0.5]])
    assert all(np.isnan(table).all() for table in samples.gpu.values())
    pytest.importorskip("plotly", reason="plotly, which pages are drawn with, is not installed")
    page = tmp_path / "page.html"
    assert main(["report", str(session), "--html", str(page)]) == 0
    data = re.search(r'<script id="data"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert data is not None
    found = json.loads(data[1], parse_constant=pytest.fail)
    assert found["machine"]["CPUs"] is None
    assert [each["value"] for each in found["series"]] == [[0.5]]


def test_names_that_no_terminal_can_show_are_escaped(tmp_path: Path, capsysbinary: Any) -> None:
    """Half a surrogate cannot be encoded; an escape sequence would be obeyed."""
    start = {**START, "name": "a\ud800\x1b[2J\nb"}
    names = [[9, "call", "\x1b]0;x\x07", 3, "\udfff"], [10, "operation", "Straße 東京", 0, None]]
    write_session(tmp_path, [start, END], names)
    (process,) = open_session(tmp_path).processes
    assert process.name == "a\\ud800\\x1b[2J\\nb"
    assert process.names[9].name == "\\x1b]0;x\\x07"
    assert process.names[10].name == "Straße 東京"
    assert main(["report", str(tmp_path)]) == 0
    assert b"\x1b" not in capsysbinary.readouterr().out


def test_a_pid_that_comes_again_is_told_apart(tmp_path: Path) -> None:
    """Pid 7 twice, each with a child: the children belong to the one that then had the pid."""
    write_session(tmp_path, [START, END])
    for pid, parent, base in ((20, 7, 1500), (7, 1, 3000), (21, 7, 3500)):
        other = tmp_path / "processes" / f"{pid}-{base}"
        other.mkdir()
        start = {**START, "pid": pid, "parent_pid": parent, "base_ns": base}
        rows = [start, {**END, "time_ns": base + 100}]
        (other / "process.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (other / "names.jsonl").touch()
    first, child, second, grandchild = report(tmp_path).processes
    assert first.pid != second.pid
    assert (child.parent_pid, grandchild.parent_pid) == (first.pid, second.pid)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    write_session(tmp_path, [START, {**END, "write_errno": 28, "dropped": 3}])
    assert any("could be written: No space" in problem for problem in report(tmp_path).problems)


def test_a_disk_that_is_full_for_a_moment_costs_that_moment(profiled: Any) -> None:
    """The batch that did not fit was left half written, and swallowed all behind it."""
    done = profiled.run(
        """
import resource, signal
from redline import profile
from redline.profile import _native
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def marks(name, count):
    for k in range(count):
        with profile.operation(name):
            pass
        if k % 500 == 0:
            _native.flush()

marks("first", 2000)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_001, hard))
marks("lost", 20_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
marks("last", 3000)
""",
        mode="light",
    )
    assert done.returncode == 0
    found = summarize(profiled.session)
    (process,) = open_session(profiled.session).processes
    threads = build_timeline(process).threads
    assert len(times_of_begins(threads, begins_of(process, "first"))) == 2000
    assert len(times_of_begins(threads, begins_of(process, "last"))) == 3000
    assert any("could be written: File too large" in problem for problem in found.problems)
    assert not any("damaged" in problem or "cut short" in problem for problem in found.problems)


def test_a_thread_that_begins_while_the_disk_is_full_is_there_later(profiled: Any) -> None:
    """Half of its file's head was written, and all behind that was lost."""
    profiled.run(
        """
import resource, signal, threading
from redline import profile
from redline.profile import _native
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def marks(name, count):
    for _ in range(count):
        with profile.operation(name):
            pass
    _native.flush()

def work():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    marks("lost", 10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    marks("last", 3000)

thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
        mode="light",
    )
    found = summarize(profiled.session)
    (process,) = open_session(profiled.session).processes
    threads = build_timeline(process).threads
    assert len(times_of_begins(threads, begins_of(process, "last"))) == 3000
    assert len(times_of_begins(threads, begins_of(process, "lost"))) == 0
    assert any("could be written: File too large" in problem for problem in found.problems)
    assert not any("damaged" in problem or "cut short" in problem for problem in found.problems)


def test_names_that_are_first_met_while_the_disk_is_full_are_there_later(profiled: Any) -> None:
    """Of the name 5 bytes fit. Before, it was lost for good, with all that was marked by it."""
    profiled.run(
        """
import resource, signal
from redline import profile
from redline.profile import _native
from redline.profile.record.recorder import current
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
(names,) = current().directory.glob("processes/*/names.jsonl")

def marks(count):
    for _ in range(count):
        with profile.operation("met meanwhile"):
            pass
    _native.flush()

_native.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (names.stat().st_size + 5, hard))
marks(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
profile.metadata(said="meanwhile")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
marks(3000)
""",
        mode="light",
    )
    found = summarize(profiled.session)
    (process,) = open_session(profiled.session).processes
    threads = build_timeline(process).threads
    assert len(times_of_begins(threads, begins_of(process, "met meanwhile"))) >= 3000
    assert process.metadata == {"said": "meanwhile"}
    assert process.end is not None
    assert process.end["lines_lost"] == 0
    assert not any("torn" in problem or "missing" in problem for problem in found.problems)


def test_lines_wait_in_little_memory_and_those_that_do_not_fit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has 4 bytes, the disk room for 6, and 12 may wait: the rest of 200, 300 and 400."""
    room, real = [6], os.write

    def write(file: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(json_lines, "MOST_KEPT_BYTES", 12)
    monkeypatch.setattr(os, "write", write)
    lines = json_lines.JsonLines(tmp_path / "lines.jsonl")
    for number in (100, 200, 300, 400, 500, 600):
        lines.append(number)
    assert (tmp_path / "lines.jsonl").read_text() == "100\n20"
    assert (lines.lost, lines.flush()) == (2, 3)
    room[0] = 1000
    lines.append(700)
    lines.close()
    assert (tmp_path / "lines.jsonl").read_text() == "100\n200\n300\n400\n700\n"


def test_names_that_were_lost_are_told(tmp_path: Path) -> None:
    """Operation 9 has no name: its session's program was killed while the disk was full."""
    process = write_session(tmp_path, [START, {**END, "lines_lost": 3}])
    codes = pa.array([layout.CODE_WINDOW_ON, 18, 19, 18, 19], pa.uint16())
    deltas = pa.array([0, 5, 5, 5, 5], pa.uint32())
    write_shard(process / "thread-00000.arrow", delta_ns=deltas, code=codes)
    problems = report(tmp_path).problems
    assert any("names and notes that could not be written: 3" in each for each in problems)
    assert any("names that its events refer to are missing (1)" in each for each in problems)


FULL_FOR_A_WHILE = """
import resource, signal, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))

def first(): work(0.3)
def meanwhile(): work(1.2)
def last(): work(1.2)

first()
resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
meanwhile()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
last()
"""


@pytest.mark.parametrize("mode", ["sample", "full"])
def test_lines_and_samples_go_on_behind_a_disk_that_was_full(profiled: Any, mode: str) -> None:
    """Codes that were first met meanwhile were lost, and each later line was one out of turn."""
    done = profiled.run(FULL_FOR_A_WHILE, mode=mode)
    assert done.returncode == 0
    found = summarize(profiled.session)
    assert {"first", "meanwhile", "last"} <= {row.function for row in found.python_functions}
    assert not any("not all lines" in p for p in found.problems)  # they waited
    assert not any("no sense" in p or "damaged" in p for p in found.problems)
    if mode == "sample":
        samples = read_sampled(open_session(profiled.session).processes[0])
        assert samples is not None
        assert samples.times_ns[-1] > 2_000_000_000  # the lost ones' time is not missing
        assert any("not all samples could be written" in p for p in found.problems)


def test_lines_go_on_in_a_program_that_closes_all_files(profiled: Any) -> None:
    """As a daemon does. The events' file was opened again, those of lines and samples were not.

    The files that the program opens then, under the same numbers, stay its own.
    """
    done = profiled.run(
        FULL_FOR_A_WHILE.split("first()\nresource")[0]
        + """
import os
from redline.profile.record.recorder import current
first()
os.closerange(3, 256)
own = [os.open("/dev/null", os.O_RDONLY) for _ in range(12)]
last()
current().stop()
for number in own:
    os.fstat(number)
print("all there")
""",
        mode="sample",
        sample_hz=250.0,
    )
    assert done.stdout == "all there\n"
    found = summarize(profiled.session)
    assert {"first", "last"} <= {row.function for row in found.python_functions}
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    # Of 1.2 s the first waits for the next write.
    assert (samples.levels[samples.times_ns > samples.times_ns[-1] // 2] == levels.PYTHON).any()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["profile", "--out", str(tmp_path / "s"), "--", "true"]) == 2
    assert "cannot write a session" in capsys.readouterr().err


def test_reports_that_cannot_be_written_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = tmp_path / "s"
    session.mkdir()
    write_session(session, [START, END])
    nowhere = str(tmp_path / "missing" / "file.json")
    assert main(["trace", str(session), "--out", nowhere]) == 2
    assert "cannot write" in capsys.readouterr().err
    (tmp_path / "tables" / "processes.csv").mkdir(parents=True)
    assert main(["report", str(session), "--csv", str(tmp_path / "tables")]) == 2
    assert "cannot write the report" in capsys.readouterr().err


def test_a_session_that_was_removed_is_not_made_anew(profiled: Any) -> None:
    done = profiled.run(
        """
import os, shutil
from redline.profile.record.recorder import current
directory = current().directory
# The recorder goes on writing: its next file could appear between the removal of the files and
# that of the directory. A directory is moved in one step.
moved = directory.rename(directory.with_name("removed"))
shutil.rmtree(moved, ignore_errors=True)
if (child := os.fork()) == 0:
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), directory.exists())
""",
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3 False\n")
    assert "this process is not profiled: cannot join the session" in done.stderr
