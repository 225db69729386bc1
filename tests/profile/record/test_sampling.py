"""The sampler and the readings of the machine: by hand, on fake sources, and on real programs."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from redline import profile
from redline.errors import ConfigError, ProfilerConflictError
from redline.profile import layout, levels
from redline.profile.analyse.cells import operation_name
from redline.profile.analyse.samples import read_machine_samples
from redline.profile.analyse.shares import (
    ShareRow,
    compare_shares,
    read_sampled,
    weigh,
    with_shares,
)
from redline.profile.analyse.summary import Cell, Summary, summarize
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import Process, Session, Shard, open_session
from redline.profile.record import machine
from redline.profile.record.machine import MachineSampler
from redline.profile.record.nvml import Nvml, NvmlMissingError
from redline.profile.report.text import render_text
from tests.profile.streams import INFERENCE, INFERRED, SIMULATION, TORCH, begin, end, process


def shard(rows: list[tuple[int, int]]) -> Shard:
    return Shard(
        Path("sampled.arrow"),
        np.array([delta for delta, _ in rows], np.uint32),
        np.array([code for _, code in rows], np.uint16),
        None,
    )


def test_a_sample_stands_for_the_time_before_it() -> None:
    """Samples at 10, 20, 35, then a pause of 1000 with a gap row in it, then 45 after that.

    The first stands for nothing, the one after the pause for the median interval, (10, 15,
    1000 + 5, 10) -> 12.
    """
    found = weigh(
        shard(
            [
                (10, levels.PYTHON),
                (10, levels.BACKEND),
                (15, levels.SIMULATOR),
                (1000, layout.SAMPLED_GAP),
                (5, levels.PYTHON),
                (10, levels.WAITING),
            ]
        )
    )
    assert found.times_ns.tolist() == [10, 20, 35, 1040, 1050]
    assert found.weights_ns.tolist() == [0, 10, 15, 12, 10]
    assert found.levels.tolist() == [0, 1, 3, 0, 5]


def test_a_sampler_that_becomes_slower_counts_as_much() -> None:
    """300 samples each 2 ms, then 100 each 40 ms of another level: 0.6 s and 4 s."""
    rows = [(0, 0), *[(2_000_000, 0)] * 300, *[(40_000_000, levels.BACKEND)] * 100]
    found = weigh(shard(rows))
    weights = [int(found.weights_ns[found.levels == level].sum()) for level in (0, levels.BACKEND)]
    assert weights == [600_000_000, 4_000_000_000]


def sampled_session(directory: Path, made: Process, rows: list[tuple[int, int]]) -> Session:
    path = directory / layout.SAMPLES_SHARD
    columns = [pa.array([d for d, _ in rows], pa.uint32()), pa.array([c for _, c in rows])]
    batch = pa.record_batch([columns[0], columns[1].cast(pa.uint16())], ["delta_ns", "code"])
    with pa.ipc.new_stream(str(path), batch.schema) as stream:
        stream.write_batch(batch)
    made.directory = directory
    return Session(directory, {"mode": "full"}, [made])


def test_shares_by_hand(tmp_path: Path) -> None:
    """Measured: simulation 0..40, in it torch 10..30; then inferred inference 50..70, to 100.

    Four samples each stand for 10: at 15 (backend), 25 (backend), 35 and 45 (python). Inferred
    inference is `other` to the sampler, which sees marks only.
    """
    made = process(
        [
            (0, layout.CODE_WINDOW_ON),
            (0, begin(SIMULATION)),
            (10, begin(TORCH)),
            (30, end(TORCH)),
            (40, end(SIMULATION)),
            (50, begin(INFERRED)),
            (70, end(INFERRED)),
        ]
    )
    samples = [(5, 0), (10, levels.BACKEND), (10, levels.COMPILED), (10, 0), (10, 0)]
    session = sampled_session(tmp_path, made, samples)
    rows = {(row.kind, row.name): row for row in compare_shares(session, session)}
    assert {key: row.measured for key, row in rows.items()} == pytest.approx(
        {
            ("level", "python"): 0.8,
            ("level", "backend"): 0.2,
            ("operation", "simulation"): 0.4,
            ("operation", "other"): 0.6,
        }
    )
    assert {key: row.sampled for key, row in rows.items()} == pytest.approx(
        {
            ("level", "python"): 0.5,
            ("level", "backend"): 0.5,
            ("operation", "simulation"): 0.75,
            ("operation", "other"): 0.25,
        }
    )
    backend: ShareRow = rows["level", "backend"]
    assert backend.difference == pytest.approx(0.3)
    assert backend.standard_error == pytest.approx(0.25)  # sqrt(0.5 * 0.5 / 4)
    assert INFERENCE not in rows


def test_levels_in_calibration_blocks_are_not_compared(tmp_path: Path) -> None:
    """Observed: 0..40, half torch. A block to 80 in which the sampler sees torch; then Python.

    Three samples of the observed time: one of torch. Operations are known in the block, too.
    """
    made = process(
        [
            (0, layout.CODE_WINDOW_ON),
            (0, begin(SIMULATION)),
            (0, begin(TORCH)),
            (20, end(TORCH)),
            (40, layout.CODE_PROBE_OFF),
            (80, layout.CODE_PROBE_ON),
            (80, end(SIMULATION)),
        ]
    )
    torch = levels.BACKEND
    rows = [(5, torch), (10, torch), (10, 0), (20, torch), (20, torch), (20, 0)]
    session = sampled_session(tmp_path, made, rows)
    found = {(row.kind, row.name): row for row in compare_shares(session, session)}
    backend, simulation = found["level", "backend"], found["operation", "simulation"]
    assert backend.measured == pytest.approx(20 / 60)  # 0..20 of 0..40 and 80..100
    assert backend.sampled == pytest.approx(10 / 40)  # 10 at 15, of that and 10 at 25 and 20 at 85
    assert backend.samples == 3
    assert simulation.measured == pytest.approx(80 / 100)
    assert simulation.sampled == pytest.approx(60 / 80)
    assert simulation.samples == 5


def test_samples_that_stand_for_unequal_times_tell_less(tmp_path: Path) -> None:
    """Weights 10, 10 and 40: as much as (60 / sqrt(1800))^2 = 2 equal ones, of 5/6 and 1/6."""
    made = process([(0, layout.CODE_WINDOW_ON), (0, begin(TORCH)), (50, end(TORCH))])
    torch = levels.BACKEND
    session = sampled_session(tmp_path, made, [(5, 0), (10, 0), (10, torch), (40, torch)])
    rows = {(row.kind, row.name): row for row in compare_shares(session, session)}
    backend = rows["level", "backend"]
    assert backend.sampled == pytest.approx(5 / 6)
    assert backend.standard_error == pytest.approx(math.sqrt(5 / 6 * 1 / 6 / 2))


def test_levels_of_another_session_are_compared_corrected(tmp_path: Path) -> None:
    """Measured: 100 of Python, 60 of it the probe's, and 20 of the back end: corrected 2 to 1.

    Sampled in a session of its own: half and half. Operations are compared as recorded.
    """
    events = [(0, layout.CODE_WINDOW_ON), (100, begin(TORCH)), (120, end(TORCH))]
    measured = Session(tmp_path, {"mode": "full"}, [process(events, end_ns=120)])
    rows = [(5, 0), (10, levels.BACKEND), (10, levels.BACKEND), (10, 0), (10, 0)]
    samples = sampled_session(tmp_path, process(events, end_ns=120), rows)
    cells = [
        Cell("program", 1, "", "other", "python", False, 100e-9, 40e-9),
        Cell("program", 1, "", "other", "backend", False, 20e-9, 20e-9),
    ]
    summary = Summary("dir", "full", 120e-9, [], cells, [], [], 0, [])
    found = with_shares(summary, measured, samples)
    rows_found = {(row.kind, row.name): row for row in found.shares}
    assert rows_found["level", "python"].measured == pytest.approx(2 / 3)
    assert rows_found["level", "backend"].difference == pytest.approx(1 / 2 - 1 / 3)
    assert rows_found["operation", "other"].measured == pytest.approx(1.0)
    text = render_text(found)
    assert "as 4 samples saw it" in text
    assert "level     python" in text
    line = next(line for line in text.splitlines() if "level     backend" in line)
    assert line.split() == ["level", "backend", "33.3", "50.0", "25.0", "+16.7"]


def test_levels_that_were_not_measured_are_not_compared(tmp_path: Path) -> None:
    made = process([(0, layout.CODE_WINDOW_ON)])
    rows = [(5, 0), (10, levels.BACKEND), (10, 0)]
    session = sampled_session(tmp_path, made, rows)
    session.manifest["mode"] = "sample"
    summary = with_shares(summarize(session), session)
    assert math.isnan(summary.attributed)
    assert summary.to_json()["attributed"] is None
    by_level = {row.name: row for row in summary.shares if row.kind == "level"}
    assert set(by_level) == {"python", "backend"}
    assert all(math.isnan(row.measured) for row in by_level.values())
    assert by_level["backend"].sampled == pytest.approx(0.5)
    assert summary.to_json()["shares"][0]["measured"] is None
    assert "level     backend" in render_text(summary)


def test_a_session_without_samples_cannot_be_compared_with(tmp_path: Path) -> None:
    session = Session(tmp_path / "a", {"mode": "full"}, [process([(0, layout.CODE_WINDOW_ON)])])
    summary = Summary("dir", "full", 1.0, [], [], [], [], 0, [])
    assert with_shares(summary, session).shares == []
    other = Session(tmp_path / "b", {"mode": "sample"}, [process([(0, layout.CODE_WINDOW_ON)])])
    with pytest.raises(ConfigError, match="holds no samples of a process"):
        with_shares(summary, session, other)


PROGRAM = """
import time, mujoco, torch
from redline import profile
def python(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(50))
for _ in range(35):
    with profile.operation("inference"):
        torch.spin(20_000_000)
    with profile.operation("simulation"):
        mujoco.spin(16_000_000)
    python(0.012)
    time.sleep(0.012)
"""


@pytest.mark.parametrize("mode", ["sample", "full"])
def test_the_sampler_agrees_with_a_known_program(profiled: Any, mode: str) -> None:
    """Whatever the machine's load: what is seen within a mark is what the mark is around."""
    profiled.run(PROGRAM, mode=mode, sample_hz=250.0, calibrate=mode != "full")
    session = open_session(profiled.session)
    made, samples = build_timeline(session.processes[0]), read_sampled(session.processes[0])
    assert samples is not None
    numbers = np.searchsorted(made.lead[0], samples.times_ns, side="right") - 1
    for operation, level in (("inference", levels.BACKEND), ("simulation", levels.SIMULATOR)):
        within = [
            seen
            for number, seen in zip(numbers.tolist(), samples.levels.tolist(), strict=True)
            if number >= 0 and operation_name(made, made.states[made.lead[1][number]]) == operation
        ]
        # A thread that has just lost its core may be seen waiting.
        awake = [seen for seen in within if seen != levels.WAITING]
        assert len(awake) >= max(5, len(within) / 2)
        assert awake.count(level) >= 0.85 * len(awake)
    assert {levels.PYTHON, levels.WAITING} <= set(samples.levels.tolist())
    lines = (session.processes[0].directory / "process.jsonl").read_text().splitlines()
    (note,) = [each for each in map(json.loads, lines) if each.get("event") == "sampler"]
    assert note["samples"] == len(samples.levels)


def test_forked_processes_are_sampled_apart(profiled: Any) -> None:
    profiled.run(
        """
import os, time, mujoco
child = os.fork()
end = time.thread_time() + 0.3
while time.thread_time() < end:
    mujoco.spin(10_000_000)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
""",
        mode="sample",
    )
    session = open_session(profiled.session)
    assert len(session.processes) == 2
    for each in session.processes:
        read = (each.directory / layout.SAMPLES_SHARD).stat().st_size
        assert read > 200


RUN_TIME_CODE = """
import ctypes, mmap, threading, time
memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(bytes.fromhex("48ffcf75fbc3"))  # again: dec rdi; jnz again; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
count_down = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(address)

def during(seconds, function):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        function()

def work():
    during(0.4, lambda: sum(range(50)))
    during(0.2, lambda: count_down(20_000_000))
    during(0.6, lambda: sum(range(50)))

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its code is that of x86-64")
def test_a_thread_that_was_in_code_made_at_run_time_is_looked_at_again(profiled: Any) -> None:
    """A single look that could not be unwound made it one that runs no Python: all was waiting."""
    profiled.run(RUN_TIME_CODE, mode="sample", sample_hz=250.0)
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    assert (samples.levels == levels.UNATTRIBUTED).mean() > 0.02
    last = samples.levels[len(samples.levels) * 2 // 3 :]
    assert (last == levels.WAITING).mean() < 0.2
    assert (last == levels.PYTHON).mean() > 0.3


def test_a_thread_that_blocked_the_signal_at_first_is_looked_at_later(profiled: Any) -> None:
    """Every thread does in the instant of its creation; it was passed over for good."""
    profiled.run(
        """
import signal, threading, time

def during(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(50))

def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
    during(0.3)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGURG])
    during(1.2)

thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
        mode="sample",
        sample_hz=250.0,
    )
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    last = samples.levels[len(samples.levels) // 2 :]
    assert (last == levels.PYTHON).mean() > 0.3


def test_a_main_thread_that_blocks_the_signal_is_told(profiled: Any) -> None:
    """As where another thread waits for all signals. Each look waited 300 ms for an answer."""
    profiled.run(
        """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
end = time.thread_time() + 1.5
while time.thread_time() < end:
    sum(range(1000))
""",
        mode="sample",
        sample_hz=250.0,
    )
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    assert len(samples.levels) > 30
    said = summarize(profiled.session).problems
    assert any("samples are unattributed: the program blocks SIGURG" in each for each in said)


def test_a_killed_program_leaves_its_samples(profiled: Any) -> None:
    profiled.run(
        "import os, signal, mujoco\nfor _ in range(300):\n    mujoco.spin(10_000_000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        mode="sample",
        check=False,
    )
    session = open_session(profiled.session)
    samples = read_sampled(session.processes[0])
    assert samples is not None
    assert (samples.levels == levels.SIMULATOR).sum() > 10


def test_a_taken_signal_is_refused(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        with pytest.raises(ProfilerConflictError, match="SIGURG already has a handler"):
            profile.session(tmp_path / "s", mode="sample").__enter__()
        with profile.session(tmp_path / "light", mode="light"):
            pass
    finally:
        signal.signal(signal.SIGURG, before)


def test_a_signal_that_the_program_takes_later_is_its_own(profiled: Any) -> None:
    """At most one that was on its way reaches its handler; from there on nothing is known."""
    profiled.run(
        """
import os, signal, mujoco
mujoco.spin(100_000_000)
heard = []
signal.signal(signal.SIGURG, lambda *_: heard.append(1))
for _ in range(150):
    mujoco.spin(10_000_000)
assert len(heard) <= 1, heard
os.kill(os.getpid(), signal.SIGURG)
assert heard
""",
        mode="sample",
        sample_hz=250.0,
    )
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    assert (samples.levels == levels.UNATTRIBUTED).sum() > 10


# ---------------------------------------------------------------------- readings


def proc(directory: Path, ticks: list[list[int]]) -> Path:
    """A /proc of these cores and one process, 7."""
    lines = ["cpu 0 0 0 0", *(f"cpu{i} {' '.join(map(str, t))}" for i, t in enumerate(ticks))]
    (directory / "7").mkdir(parents=True, exist_ok=True)
    (directory / "stat").write_text("\n".join([*lines, "intr 5"]))
    (directory / "7" / "statm").write_text("900 25 3")
    fields = " ".join(map(str, range(3, 53)))  # each its own number, as proc(5) counts them
    (directory / "7" / "stat").write_text(f"7 (a name) with) {fields}")
    return directory


def test_readings_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core 0 was busy for 30 of 40 ticks, idle and iowait being the rest; core 1 never.

    Process 7 has 25 pages resident and used 14 + 15 ticks (utime and stime, fields 14 and 15).
    """
    monkeypatch.setattr(machine, "Nvml", lambda: Nvml(FakeLibrary()))
    session = tmp_path / "s"
    (session / "processes" / "7-123").mkdir(parents=True)
    (session / "processes" / "8-456").mkdir()  # has ended
    fake = proc(tmp_path / "proc", [[0] * 8, [5] * 8])
    sampler = MachineSampler(session, fake)
    proc(fake, [[10, 5, 5, 4, 6, 3, 2, 5], [5, 5, 5, 45, 5, 5, 5, 5]])
    sampler.read()
    sampler.close()
    with (session / "samples.jsonl").open("a") as file:
        file.write('{"time_')
    found = read_machine_samples(Session(session, {}, []))
    assert found is not None
    assert found.cpu.tolist() == [[0.75, 0.0]]
    assert found.rss_bytes[7].tolist() == [25 * machine.PAGE_BYTES]
    assert found.cpu_s[7].tolist() == [29 / machine.TICKS_PER_S]
    assert found.gpus == ["Test GPU"]
    assert found.gpu["utilization"].tolist() == [[0.75]]
    assert found.gpu["memory_used_bytes"].tolist() == [[30]]
    assert found.gpu["sm_clock_mhz"].tolist() == [[1001]]
    assert found.gpu["memory_clock_mhz"].tolist() == [[1002]]
    assert np.isnan(found.gpu["power_w"]).all()
    assert found.problems == ["samples.jsonl: a torn line, ignored"]


def test_readings_go_on_behind_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cannot be taken, the third waits for room. Before, either was the last.

    Core 0 is busy for 1 of 2 ticks between the first and the third, and for all up to the fourth.
    """
    monkeypatch.setattr(machine, "Nvml", no_driver)
    session = tmp_path / "s"
    (session / "processes").mkdir(parents=True)
    fake = proc(tmp_path / "proc", [[0] * 8])
    sampler = MachineSampler(session, fake)
    sampler.read()
    (session / "processes").rename(session / "away")
    sampler.read()
    (session / "away").rename(session / "processes")
    proc(fake, [[1, 0, 0, 1]])
    with monkeypatch.context() as full:
        full.setattr(os, "write", no_room)
        sampler.read()
    proc(fake, [[2, 0, 0, 1]])
    sampler.read()
    sampler.close()
    found = read_machine_samples(Session(session, {}, []))
    assert found is not None
    assert found.cpu.tolist() == [[0.0], [0.5], [1.0]]
    assert found.problems == [
        "no GPU readings: none in this test",
        "readings of the machine that were lost: 1",
    ]


def test_a_pid_that_comes_again_is_not_taken_for_the_process_that_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pid 7 is first of a process that started at tick 22, then of a stranger of tick 90.

    At last it is of one that joins; the first stays gone, whatever /proc says then.
    """
    monkeypatch.setattr(machine, "Nvml", no_driver)
    session = tmp_path / "s"
    (session / "processes" / "7-100").mkdir(parents=True)
    fake = proc(tmp_path / "proc", [[0] * 8])
    stat = fake / "7" / "stat"
    first = stat.read_text()
    sampler = MachineSampler(session, fake)
    sampler.read()
    stat.write_text(first.replace(" 22 ", " 90 "))
    sampler.read()
    (session / "processes" / "7-900").mkdir()
    sampler.read()
    (session / "processes" / "7-900").rmdir()
    stat.write_text(first)
    sampler.read()
    sampler.close()
    found = read_machine_samples(Session(session, {}, []))
    assert found is not None
    assert found.readings[7].tolist() == [0, 2]


def test_a_process_that_has_ended_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8, which is not in /proc at the first reading, nothing is read later."""
    monkeypatch.setattr(machine, "Nvml", no_driver)
    session = tmp_path / "s"
    (session / "processes" / "8-100").mkdir(parents=True)
    fake = proc(tmp_path / "proc", [[0] * 8])
    sampler = MachineSampler(session, fake)
    sampler.read()
    (fake / "7").rename(fake / "8")
    sampler.read()
    sampler.close()
    found = read_machine_samples(Session(session, {}, []))
    assert found is not None
    assert found.readings == {}


def no_driver() -> Nvml:
    raise NvmlMissingError("none in this test")


def no_room(file: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


class FakeLibrary:
    """NVML with one device that does not tell its power."""

    devices = 1

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:  # noqa: N802
        text.value = b"Test GPU"
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu, rates._obj.memory = 75, 50
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.free, memory._obj.used = 100, 70, 30
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, clock: Any) -> int:  # noqa: N802
        clock._obj.value = 1000 + kind
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, power: Any) -> int:  # noqa: N802
        return 3  # NVML_ERROR_NOT_SUPPORTED


def test_nvml_without_a_device_says_so() -> None:
    library = FakeLibrary()
    library.devices = 0
    with pytest.raises(NvmlMissingError, match="no device"):
        Nvml(library)


def test_a_session_in_code_has_readings_and_says_what_is_absent(tmp_path: Path) -> None:
    with profile.session(tmp_path / "s", mode="light"):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.05)
            path = tmp_path / "s" / layout.MACHINE_SAMPLES
            if path.exists() and len(path.read_text().splitlines()) > 1:
                break
    found = read_machine_samples(open_session(tmp_path / "s"))
    assert found is not None
    assert len(found.times_ns) >= 1
    assert ((found.cpu >= 0) & (found.cpu <= 1)).all()
    if not found.gpus:
        assert any("no GPU readings" in problem for problem in found.problems)
    assert len(summarize(tmp_path / "s").processes) == 1
