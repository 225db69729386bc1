"""The GPU part on recorded traces, where there is no GPU: exact tables, refusals, windows."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.errors import SessionError
from redline.profile import layout
from redline.profile.analyse.cells import compute_cells
from redline.profile.analyse.slices import outline, slices_of
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.timeline import build_timeline
from redline.profile.gpu import activity
from redline.profile.gpu.activity import (
    GpuSums,
    _union,
    api_stream,
    busy_stream,
    concurrent_with,
    device_busy,
    launched_by,
)
from redline.profile.gpu.collector import CannotCollectError, KinetoCollector
from redline.profile.gpu.records import (
    COPY,
    DRIVER,
    GRAPH,
    KERNEL,
    KINDS,
    RUNTIME,
    SET,
    SYNC,
    GpuWindow,
    read_kineto,
    read_windows,
)
from redline.profile.gpu.windows import GpuWindows
from redline.profile.reader import Name
from tests.profile.streams import INFERENCE, SIMULATION, SLEEP, TORCH, begin, end, process

FIXTURE = Path(__file__).with_name("kineto_trace.json")
# The fixture's times count from this Unix time; the CLOCK_MONOTONIC of its machine from 0 there.
UNIX_NS = 1_790_857_026_000_000_000


@pytest.fixture
def window() -> GpuWindow:
    """Two devices, three streams, within 0..1000 ns:

    | what | time | device, stream | launched at |
    |---|---|---|---|
    | kernel a | 200..400 | 0, 7 | 110 (correlation 1) |
    | kernel b | 300..500 | 0, 13 | 150 (2) |
    | copy | 450..600 | 0, 13 | 310 (3) |
    | set | 700..710 | 1, 7 | 650 (4), by the driver |
    | graph's kernels | 750..800, 800..820 | 0, 7 | 720 (5), both by one launch |
    | kernel from before | 0..50 | 0, 7 | not recorded (99) |

    The CPU waits in cudaStreamSynchronize 500..620 (correlation 6).
    """
    return GpuWindow(0, 1000, read_kineto(FIXTURE, UNIX_NS))


PROGRAM = [
    (0, layout.CODE_WINDOW_ON),
    (100, begin(INFERENCE)),
    (105, begin(TORCH)),
    (180, end(TORCH)),
    (200, end(INFERENCE)),
    (300, begin(SIMULATION)),
    (490, begin(TORCH)),
    (640, end(TORCH)),
    (715, begin(TORCH)),
    (740, end(TORCH)),
    (900, end(SIMULATION)),
]


def program() -> Any:
    """inference 100..200 with a torch call 105..180; simulation 300..900, torch 490..640 and
    715..740 in it."""
    return build_timeline(process(PROGRAM, end_ns=1000))


def test_a_trace_is_read_to_the_nanosecond(window: GpuWindow) -> None:
    records = window.records
    rows = list(
        zip(
            [KINDS[k] for k in records.kinds],
            records.begin_ns.tolist(),
            records.end_ns.tolist(),
            records.device.tolist(),
            records.stream.tolist(),
            records.correlation.tolist(),
            strict=True,
        )
    )
    assert rows == [
        ("kernel", 0, 50, 0, 7, 99),
        ("runtime", 110, 120, -1, -1, 1),
        ("runtime", 150, 155, -1, -1, 2),
        ("kernel", 200, 400, 0, 7, 1),
        ("kernel", 300, 500, 0, 13, 2),
        ("runtime", 310, 330, -1, -1, 3),
        ("copy", 450, 600, 0, 13, 3),
        ("sync", 500, 620, -1, -1, 6),
        ("driver", 650, 660, -1, -1, 4),
        ("set", 700, 710, 1, 7, 4),
        ("graph", 720, 735, -1, -1, 5),
        ("kernel", 750, 800, 0, 7, 5),
        ("kernel", 800, 820, 0, 7, 5),
    ]
    assert {KERNEL, COPY, SET, RUNTIME, DRIVER, GRAPH, SYNC} == set(range(len(KINDS)))


def test_busy_is_the_union_over_streams(window: GpuWindow) -> None:
    """Fault 33. Device 0: 0..50, 200..600, 750..820 = 50 + 400 + 70; durations sum to 670.

    Kernels 0..50, 200..500, 750..820 = 420; the copy 150, of which 450..500 beside a kernel.
    """
    first, second = device_busy(program().process, [window])
    assert (first.busy_ns, first.kernel_ns, first.copy_ns, first.both_ns) == (520, 420, 150, 50)
    assert (first.streams, first.window_ns) == (2, 1000)
    assert (second.device, second.busy_ns, second.kernel_ns, second.streams) == (1, 10, 0, 1)


def test_launched_by_goes_to_the_operation_of_the_launch(window: GpuWindow) -> None:
    """Fault 32: kernels a and b run in other operations than the one that launched them."""
    rows = {(r.operation, r.kind, r.device): r for r in launched_by(program(), [window])}
    assert {key: (r.count, r.total_ns, r.busy_ns) for key, r in rows.items()} == {
        ("inference", "kernel", 0): (2, 400, 300),
        ("simulation", "copy", 0): (1, 150, 150),
        ("simulation", "set", 1): (1, 10, 10),
        ("simulation", "kernel", 0): (2, 70, 70),
        ("(before the window)", "kernel", 0): (1, 50, 50),
    }


def test_concurrent_with_by_hand(window: GpuWindow) -> None:
    """The GPU works 0..50, 200..600, 700..710, 750..820; sums to the window.

    inference, 100..200, no GPU: python 100..105 and 180..200; torch 105..180 but 15 in calls.
    simulation, GPU on: python 300..490 but 20 in a call, 700..710, 750..820; torch 490..500; the
    wait 500..600. Off: the wait 600..620; torch 620..640 and 715..720, 735..740; python 640..700
    but 10 in a call, 710..715, 740..750, 820..900; a call 720..735.
    """
    found = {
        (r.operation, r.level, r.gpu_busy): r.time_ns for r in concurrent_with(program(), [window])
    }
    assert found == {
        ("other", "python", True): 50 + 100,
        ("other", "python", False): 50 + 100,
        ("inference", "python", False): 25,
        ("inference", "backend", False): 60,
        ("inference", "cuda_api", False): 15,
        ("simulation", "python", True): 170 + 10 + 70,
        ("simulation", "cuda_api", True): 20,
        ("simulation", "backend", True): 10,
        ("simulation", "waiting", True): 100,
        ("simulation", "waiting", False): 20,
        ("simulation", "backend", False): 20 + 5 + 5,
        ("simulation", "python", False): 50 + 5 + 10 + 80,
        ("simulation", "cuda_api", False): 10 + 15,
    }
    assert sum(found.values()) == 1000


def test_cells_know_the_gpu_and_still_sum_to_the_wall(window: GpuWindow) -> None:
    timeline = program()
    cells = compute_cells(timeline, busy_stream([window], 0), api_stream([window], 0)).time_ns
    assert sum(cells.values()) == 1000
    assert sum(ns for key, ns in cells.items() if key[3]) == 50 + 400 + 10 + 70
    assert cells["", "simulation", "waiting", True] == 100
    assert cells["", "inference", "cuda_api", False] == 15


def test_a_call_of_another_thread_is_not_the_leading_ones(window: GpuWindow) -> None:
    """The first thread is in Python 0..560 and then in torch; another one waits for the GPU.

    Of the wait 500..620 the last 60 may be of either: they are taken to be of the first. Of the
    calls 150..155, 310..330 and others none is its own.
    """
    leads = [(0, layout.CODE_WINDOW_ON), (560, begin(TORCH)), (640, end(TORCH))]
    beside = [(10, begin(INFERENCE)), (990, end(INFERENCE))]
    found: dict[str, int] = {}
    for row in concurrent_with(build_timeline(process(leads, beside, end_ns=1000)), [window]):
        found[row.level] = found.get(row.level, 0) + row.time_ns
    assert found == {"python": 560 + 360, "waiting": 60, "backend": 20}


COLLECTOR, IMPORTS = range(20, 22)
EXTRA = {
    COLLECTOR: Name(COLLECTOR, "operation", "gpu collector", 0, None),
    IMPORTS: Name(IMPORTS, "operation", "imports", 0, None),
}
CLOSES = [
    *((5, begin(TORCH)), (10, end(TORCH)), (20, begin(SLEEP)), (80, end(SLEEP))),
    *((910, begin(COLLECTOR)), (920, begin(TORCH)), (940, end(TORCH)), (950, end(COLLECTOR))),
]
KEEPS_TIME = [
    *((0, layout.CODE_WINDOW_ON), (0, begin(IMPORTS)), (5, end(IMPORTS))),
    *((10, begin(SLEEP)), (990, end(SLEEP)), (990, layout.CODE_WINDOW_OFF)),
]


@pytest.mark.parametrize(
    ("beside", "is_alone"),
    [
        ([CLOSES], True),
        ([KEEPS_TIME], True),
        ([KEEPS_TIME, CLOSES], True),
        ([[*KEEPS_TIME[:3], (6, begin(TORCH)), (8, end(TORCH))]], False),
        ([[(2, begin(INFERENCE)), (3, end(INFERENCE)), *CLOSES]], False),
        ([KEEPS_TIME, [(10, begin(SLEEP)), (990, end(SLEEP))]], False),
    ],
    ids=["gpu", "window", "both", "switches", "works", "waits"],
)
def test_the_profilers_own_threads_are_none_of_the_program(
    window: GpuWindow, beside: list[list[tuple[int, int]]], is_alone: bool
) -> None:
    """The call 310..330 is the main thread's, which was in Python, if no other can have made it."""
    made = process(PROGRAM, *beside, end_ns=1000)
    made.names = made.names | EXTRA
    for timeline in (build_timeline(made), next(slices_of(outline([made]))).timelines[0]):
        assert timeline.is_alone is is_alone
        found = {
            (r.operation, r.level, r.gpu_busy): r.time_ns
            for r in concurrent_with(timeline, [window])
        }
        assert found.get(("simulation", "cuda_api", True), 0) == (20 if is_alone else 0)


def test_windows_are_looked_at_in_the_slices_of_their_launches(
    window: GpuWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches at 0 to 720 are in 8 of 10 slices of 100 ns; those of a later window in none."""
    looks: list[int] = []
    later = GpuWindow(5000, 6000, read_kineto(FIXTURE, UNIX_NS - 5000))
    whole = program()
    sums = GpuSums(whole.process, [window, later])
    look = activity._launches
    monkeypatch.setattr(
        activity, "_launches", lambda w, base: (looks.append(w.begin_ns), look(w, base))[1]
    )
    for at in range(0, 1000, 100):
        sums.add(replace(whole, begin_ns=at, until_ns=at + 100))
    assert looks == [0] * 8
    assert sums.launched_by() == launched_by(whole, [window])


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12)


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_union_equals_counting(spans: list[tuple[int, int]]) -> None:
    intervals = np.array([(b, b + d) for b, d in spans], np.int64).reshape(-1, 2)
    merged = _union(intervals)
    inside = {t for b, d in spans for t in range(b, b + d)}
    assert {t for b, e in merged.tolist() for t in range(b, e)} == inside
    assert all(a[1] < b[0] for a, b in zip(merged.tolist(), merged.tolist()[1:], strict=False))


def test_a_trace_cut_short_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    (tmp_path / "gpu-00000.json").write_bytes(FIXTURE.read_bytes())
    (tmp_path / "gpu-00001.json").write_bytes(FIXTURE.read_bytes()[:900])
    notes = [
        {"file": f"gpu-0000{i}.json", "begin_ns": 0, "end_ns": 1000, "unix_offset_ns": UNIX_NS}
        for i in range(2)
    ]
    lines = [json.dumps(note) for note in notes]
    lines += [json.dumps({"reason": "held by another"}), '{"fil']
    (tmp_path / layout.GPU_NOTES).write_text("\n".join(lines))
    made = process([])
    made.directory = tmp_path
    windows, problems = read_windows(made)
    assert len(windows) == 1
    assert "gpu-00001.json: cut short or no Kineto trace" in problems[0]
    assert problems[1] == "no GPU records: held by another"
    assert "torn line" in problems[2]
    with pytest.raises(SessionError, match="cut short"):
        read_kineto(tmp_path / "gpu-00001.json", 0)


# ---------------------------------------------------------------------- collecting


class FakeCollector:
    """Writes the fixture, or refuses from the n-th window on."""

    def __init__(self, refuse_at: int = 99) -> None:
        self.started, self.refuse_at, self.threads = 0, refuse_at, set()
        self.enough = threading.Event()

    def start(self) -> None:
        self.threads.add(threading.get_ident())
        if self.started == self.refuse_at:
            self.enough.set()
            raise CannotCollectError("the device is held by another profiler")
        self.started += 1

    def stop(self, output: Path) -> None:
        self.threads.add(threading.get_ident())
        output.write_bytes(FIXTURE.read_bytes())
        if self.started == 3:
            self.enough.set()


def run_windows(directory: Path, collector: FakeCollector, **options: Any) -> list[dict[str, Any]]:
    windows = GpuWindows(
        directory, collector, window_s=0.01, every_s=0.02, mark=contextlib.nullcontext(), **options
    )
    windows.start()
    assert collector.enough.wait(20)
    windows.stop()
    text = (directory / layout.GPU_NOTES).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_windows_leave_their_files(tmp_path: Path) -> None:
    collector = FakeCollector()
    notes = run_windows(tmp_path, collector, in_use=lambda: True)
    assert len(notes) == collector.started >= 3
    assert [n["file"] for n in notes][:2] == ["gpu-00000.json", "gpu-00001.json"]
    assert all(n["begin_ns"] <= n["end_ns"] <= n["closed_ns"] for n in notes)
    assert len(collector.threads) == 1
    assert threading.get_ident() not in collector.threads


def test_a_collector_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The device is taken over after one window: that window stays, the reason is kept."""
    notes = run_windows(tmp_path, FakeCollector(refuse_at=1), in_use=lambda: True)
    assert notes[0]["file"] == "gpu-00000.json"
    assert notes[1:] == [{"reason": "the device is held by another profiler"}]


def test_a_program_without_a_gpu_is_said_to_have_none(tmp_path: Path) -> None:
    collector = FakeCollector()
    collector.enough.set()
    assert run_windows(tmp_path, collector, in_use=lambda: False) == [
        {"reason": "the program did not use a GPU"}
    ]
    assert collector.started == 0


def fake_torch(activities: set[str], *, profiled: bool = False, elsewhere: bool = False) -> Any:
    """`profiled`: in the calling thread; `elsewhere`: in another one."""
    profiler = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CUDA="CUDA"), _is_profiler_enabled=elsewhere
    )
    autograd = SimpleNamespace(
        profiler=profiler,
        _supported_activities=lambda: activities,
        _profiler_enabled=lambda: profiled,
    )
    return SimpleNamespace(autograd=autograd, __version__="9.9")


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (None, "has not imported torch"),
        (fake_torch(set()), "no CUPTI"),
        (fake_torch({"CUDA"}, profiled=True), "runs a torch profiler itself"),
        (fake_torch({"CUDA"}, elsewhere=True), "runs a torch profiler itself"),
        (fake_torch({"CUDA"}), "Kineto does not start with torch 9.9"),
    ],
)
def test_kineto_refuses_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, torch: Any, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(CannotCollectError, match=reason):
        KinetoCollector().start()
    with pytest.raises(CannotCollectError, match="not started"):
        KinetoCollector().stop(Path("nowhere"))


def kineto_torch(*, start_fails: bool, stop_fails: bool) -> Any:
    """A torch whose profiler tells all of torch that it runs, as the real one does."""
    torch = fake_torch({"CUDA"})
    autograd, profiler = torch.autograd, torch.autograd.profiler

    def tell(enabled: bool) -> None:
        profiler._is_profiler_enabled = enabled

    def start() -> None:
        tell(True)
        if start_fails:
            raise RuntimeError("CUPTI is held by somebody else")

    def stop() -> Any:
        if stop_fails:
            raise RuntimeError("no records")
        return SimpleNamespace(save=lambda path: None)

    profiler._run_on_profiler_stop = lambda: tell(False)
    profiler._ExperimentalConfig = SimpleNamespace
    profiler.profile = lambda **options: SimpleNamespace(
        _prepare_trace=lambda: None, _start_trace=start
    )
    autograd._disable_profiler = stop
    return torch


@pytest.mark.parametrize("fails", ["nothing", "start", "stop"])
def test_after_a_window_torch_knows_that_no_profiler_runs(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Else every later launch of a compiled kernel would leave its fast path."""
    torch = kineto_torch(start_fails=fails == "start", stop_fails=fails == "stop")
    monkeypatch.setitem(sys.modules, "torch", torch)
    collector = KinetoCollector()
    with contextlib.nullcontext() if fails != "start" else pytest.raises(CannotCollectError):
        collector.start()
    if fails != "start":
        assert torch.autograd.profiler._is_profiler_enabled
        with contextlib.nullcontext() if fails != "stop" else pytest.raises(CannotCollectError):
            collector.stop(Path("nowhere"))
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_program_that_runs_a_profiler_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the window was refused must not tell torch that the program's own has ended."""
    torch = kineto_torch(start_fails=False, stop_fails=False)
    torch.autograd.profiler._is_profiler_enabled = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(CannotCollectError, match="runs a torch profiler itself"):
        KinetoCollector().start()
    assert torch.autograd.profiler._is_profiler_enabled


def test_a_session_with_gpu_windows_has_gpu_tables(profiled: Any) -> None:
    """The fixture, moved to the middle of a recorded session."""
    profiled.run("import mujoco\nmujoco.spin(20_000_000)\n", calibrate=False)
    (directory,) = (profiled.session / "processes").iterdir()
    finish = json.loads((directory / "process.jsonl").read_text().splitlines()[-1])
    at = finish["time_ns"] - 10_000_000
    (directory / "gpu-00000.json").write_bytes(FIXTURE.read_bytes())
    note = {"file": "gpu-00000.json", "begin_ns": at, "end_ns": at + 1000}
    note["unix_offset_ns"] = UNIX_NS - at
    lines = [json.dumps(note), json.dumps({"reason": "the driver was reset"})]
    (directory / layout.GPU_NOTES).write_text("\n".join(lines))
    summary = summarize(profiled.session)
    assert [row.busy_ns for row in summary.gpu_devices] == [520, 10]
    assert sum(row.time_ns for row in summary.gpu_concurrent) == 1000
    assert sum(row.count for row in summary.gpu_launched) == 7
    busy_s = sum(cell.raw_s for cell in summary.cells if cell.gpu_busy)
    assert busy_s == pytest.approx(530e-9)
    assert any("the driver was reset" in problem for problem in summary.problems)
    total = sum(cell.raw_s for cell in summary.cells)
    assert total == pytest.approx(summary.processes[0].wall_s)
