"""Generated traces with known answers, read through the code that reads recorded ones.

Each answer is counted nanosecond by nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redline.errors import SessionError
from redline.profile import layout
from redline.profile.analyse.timeline import build_timeline
from redline.profile.gpu.activity import BEFORE, concurrent_with, device_busy, launched_by
from redline.profile.gpu.records import GpuWindow, read_kineto
from tests.profile.gpu.traces import Launch, Ran, launches, write
from tests.profile.streams import INFERENCE, SIMULATION, begin, end, process

END = 60
MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# The CPU's operations: inference 10..25, and in it simulation 15..20; simulation 30..50.
OPERATIONS = [(10, 25, "inference"), (15, 20, "simulation"), (30, 50, "simulation")]


def program() -> Any:
    return build_timeline(
        process(
            [
                (0, layout.CODE_WINDOW_ON),
                (10, begin(INFERENCE)),
                (15, begin(SIMULATION)),
                (20, end(SIMULATION)),
                (25, end(INFERENCE)),
                (30, begin(SIMULATION)),
                (50, end(SIMULATION)),
            ],
            end_ns=END,
        )
    )


def operation_at(time: int) -> str:
    inside = [name for first, last, name in OPERATIONS if first <= time < last]
    return inside[-1] if inside else "other"


def read(folder: Path, made: list[Launch], **how: Any) -> GpuWindow:
    write(folder / "gpu-00000.json", made, **how)
    return GpuWindow(0, END, read_kineto(folder / "gpu-00000.json", how.get("unix_ns", 0)))


def instants(made: list[Launch], **which: Any) -> set[int]:
    """The ns in which any of what was launched ran."""
    return {
        t
        for launch in made
        for ran in launch.ran
        if all(getattr(ran, k, getattr(launch, k, None)) == v for k, v in which.items())
        for t in range(ran.begin, min(ran.end, END))
    }


@MANY
@given(launches(END), st.booleans())
def test_busy_is_counted_over_streams_graphs_and_copies(
    tmp_path: Path, made: list[Launch], last_first: bool
) -> None:
    rows = device_busy(program().process, [read(tmp_path, made, last_first=last_first)])
    found = {row.device: (row.busy_ns, row.kernel_ns, row.copy_ns, row.both_ns) for row in rows}
    devices = {ran.device for launch in made for ran in launch.ran}
    wanted = {}
    for device in devices:
        kernels = instants(made, device=device, runs_as="kernel")
        copies = instants(made, device=device, runs_as="copy")
        every = instants(made, device=device)
        wanted[device] = len(every), len(kernels), len(copies), len(kernels & copies)
    assert found == wanted
    streams = {row.device: row.streams for row in rows}
    assert streams == {
        d: len({ran.stream for launch in made for ran in launch.ran if ran.device == d})
        for d in devices
    }


@MANY
@given(launches(END), st.booleans())
def test_what_ran_belongs_to_the_operation_that_launched_it(
    tmp_path: Path, made: list[Launch], last_first: bool
) -> None:
    """Every kernel of a graph to the one launch, a nested call to the outer one's."""
    window = read(tmp_path, made, last_first=last_first)
    found = {(r.operation, r.kind, r.device): r for r in launched_by(program(), [window])}
    count: dict[Any, int] = defaultdict(int)
    total: dict[Any, int] = defaultdict(int)
    busy: dict[Any, set[int]] = defaultdict(set)
    for launch in made:
        operation = operation_at(launch.at) if launch.is_recorded else BEFORE
        for ran in launch.ran:
            key = operation, launch.runs_as, ran.device
            count[key] += 1
            total[key] += ran.end - ran.begin
            busy[key] |= set(range(ran.begin, ran.end))
    assert {key: row.count for key, row in found.items()} == count
    assert {key: row.total_ns for key, row in found.items()} == total
    assert {key: row.busy_ns for key, row in found.items()} == {k: len(b) for k, b in busy.items()}


@MANY
@given(launches(END))
def test_what_the_cpu_did_meanwhile_sums_to_the_window(tmp_path: Path, made: list[Launch]) -> None:
    rows = concurrent_with(program(), [read(tmp_path, made)])
    busy = instants(made)
    found: dict[Any, int] = defaultdict(int)
    for row in rows:
        found[row.operation, row.gpu_busy] += row.time_ns
    wanted: dict[Any, int] = defaultdict(int)
    for t in range(END):
        wanted[operation_at(t), t in busy] += 1
    assert found == wanted


def test_two_processes_on_one_gpu_are_each_given_their_own(tmp_path: Path) -> None:
    """Both have ids from 1 on, and streams of the same numbers; 10..20 and 15..30 overlap."""
    found = []
    for number, ran in enumerate((Ran(10, 20, 0, 7), Ran(15, 30, 0, 7))):
        folder = tmp_path / str(number)
        folder.mkdir()
        at = 12 if number == 0 else 31
        window = read(folder, [Launch("kernel", at, 1, (ran,))], unix_ns=number * 10**9)
        timeline = program()
        (busy,) = device_busy(timeline.process, [window])
        (launched,) = launched_by(timeline, [window])
        found.append((busy.busy_ns, launched.operation, launched.total_ns))
    assert found == [(10, "inference", 10), (15, "simulation", 15)]


def test_what_runs_on_when_a_window_closes_is_cut(tmp_path: Path) -> None:
    """A kernel of 50..90 in a window of 0..60 was busy for 10 of it, and took 40."""
    window = read(tmp_path, [Launch("kernel", 40, 2, (Ran(50, 90, 0, 7),))])
    assert device_busy(program().process, [window])[0].busy_ns == 10
    assert launched_by(program(), [window])[0].total_ns == 40


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_lost_tail_is_refused_by_name(tmp_path: Path, share: float) -> None:
    """A trace that was cut short holds no half-truths."""
    made = [Launch("graph", 12, 2, tuple(Ran(t, t + 3, 0, 7) for t in (15, 20, 30)))]
    path = tmp_path / "gpu-00000.json"
    write(path, made)
    text = path.read_text()
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(SessionError, match=r"gpu-00000\.json: cut short or no Kineto trace"):
        read_kineto(path, 0)


def test_lost_records_are_said_to_be_from_before(tmp_path: Path) -> None:
    """CUPTI drops what its buffers cannot take: kernels without their launches, and the reverse."""
    made = [
        Launch("graph", 12, 2, (Ran(15, 18, 0, 7), Ran(18, 22, 0, 7)), is_recorded=False),
        Launch("kernel", 32, 1, ()),
    ]
    (row,) = launched_by(program(), [read(tmp_path, made)])
    assert (row.operation, row.kind, row.count, row.busy_ns) == (BEFORE, "kernel", 2, 7)
