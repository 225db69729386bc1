"""What GPU windows and backward passes say of the steady state, with answers known by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redline.profile import layout
from redline.profile.advise.iteration import read_iteration
from redline.profile.advise.reading import find_iteration, read_session
from redline.profile.reader import Process, open_session
from tests.profile.gpu.traces import Launch, Ran, write

PROGRAM = """
import mujoco, torch
from redline import profile
for i in range(150):
    with profile.operation("simulation"):
        mujoco.spin(530_000)
    with profile.operation("learning"):
        torch.spin(1_730_000)
"""
MS = 1_000_000


@pytest.fixture
def session(profiled: Any) -> Path:
    profiled.run(PROGRAM, calibrate=False)
    return profiled.session


def observe(process: Process, begin_ns: int, end_ns: int, launches: list[Launch]) -> None:
    """A GPU window of a process, in ns since its base, in which the GPU did this."""
    base_ns = process.base_ns
    write(process.directory / "gpu-00000.json", launches, base_ns)
    times = {"begin_ns": base_ns + begin_ns, "end_ns": base_ns + end_ns, "unix_offset_ns": 0}
    note = json.dumps({"file": "gpu-00000.json", **times})
    (process.directory / layout.GPU_NOTES).write_text(note + "\n")


def every_ms(begin_ns: int, end_ns: int, busy_ns: int, call_ns: int) -> list[Launch]:
    """Each ms a call that launches, and from its begin on a kernel of so long."""
    return [
        Launch("kernel", at, call_ns, (Ran(at, at + busy_ns, 0, 7),))
        for at in range(begin_ns, end_ns, MS)
    ]


def test_gpu_shares_are_of_the_windows_in_the_steady_state(session: Path) -> None:
    """The GPU is busy 0.2 of each ms, and 0.5 of it are calls of its API; in the program's start,
    before the steady state, the window shows a GPU at rest. Half of the run is not observed."""
    plain = read_iteration(session)
    (process,) = open_session(session).processes
    begin, end = int(plain.begin_s * 1e9), int(plain.end_s * 1e9)
    middle = (begin + end) // 2
    observe(process, 0, middle, every_ms(begin, middle, MS // 5, MS // 2))
    found = read_iteration(session)
    assert found.gpu.busy == pytest.approx(0.2, abs=0.02)
    assert found.gpu.launching == pytest.approx(0.5, abs=0.05)
    assert found.gpu.idle == pytest.approx(0.8, abs=0.05)
    again = find_iteration(read_session(open_session(session)))
    assert again is not None
    assert again.gpu == found.gpu
    assert not found.gpu.replays
    later = begin + MS  # `begin` is rounded, and may be a nanosecond early
    observe(process, 0, middle, [Launch("graph", later, 10, (Ran(later, later + 10, 0, 7),))])
    assert read_iteration(session).gpu.replays


def test_calls_of_the_gpu_are_a_level_of_an_env_step(session: Path) -> None:
    """Half of each ms is a call: so is half of what the update spends in the back end."""
    plain = read_iteration(session)
    (process,) = open_session(session).processes
    begin, end = int(plain.begin_s * 1e9), int(plain.end_s * 1e9)
    observe(process, begin, end, every_ms(begin, end, MS // 5, MS // 2))
    part = read_iteration(session).part("learning")
    calls, others = part.level("cuda_api"), part.level("backend") + part.level("python")
    assert calls == pytest.approx(others, rel=0.1)
    assert calls + others == pytest.approx(part.time.us)


def test_windows_before_the_steady_state_tell_where_no_other_does(session: Path) -> None:
    plain = read_iteration(session)
    (process,) = open_session(session).processes
    begin = int(plain.begin_s * 1e9)
    observe(process, begin - 2 * MS, begin, every_ms(begin - 2 * MS, begin, MS // 4, 0))
    assert read_iteration(session).gpu.busy == pytest.approx(0.25)


def test_without_windows_nothing_is_said_of_a_gpu(session: Path) -> None:
    found = read_iteration(session).gpu
    assert (found.busy, found.launching, found.idle) == (0.0, 0.0, 0.0)
