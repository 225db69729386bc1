"""Counters by operation: on readings given by hand, and the kernel's own counts for real."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redline import profile
from redline.errors import ProfilerConflictError
from redline.profile import _native
from redline.profile.analyse.summary import summarize
from redline.profile.commands import main
from redline.profile.record.counters import Counters
from redline.profile.report.text import render_text

INSTRUCTIONS, CYCLES = (0, 1, True), (0, 0, True)


@pytest.fixture(autouse=True)
def uncounted() -> Iterator[None]:
    yield
    _native.set_counters([])
    _native.set_counts()


def counts(*names: str) -> list[tuple[float, ...]]:
    """Of these operations, and of none."""
    found = _native.counts()
    ids = [*(profile.operation(name).id for name in names), 0]
    return [found.get(number, ()) for number in ids]


def test_what_was_counted_belongs_to_the_innermost_operation(
    fake_recorder: Callable[..., Any],
) -> None:
    """(instructions, cycles), read at each change: none until (5, 1), outer until (15, 4), inner
    until (115, 44), outer again until (120, 46), none until (121, 47).
    """
    _native.set_counters([INSTRUCTIONS, CYCLES])
    _native.set_counts(0, 0, (0, 0))
    recorder = fake_recorder()
    _native.set_counts(5, 5, (5, 1))
    with profile.operation("outer"):
        _native.set_counts(15, 15, (15, 4))
        with profile.operation("inner"):
            _native.set_counts(115, 115, (115, 44))
        _native.set_counts(120, 120, (120, 46))
    _native.set_counts(121, 121, (121, 47))
    assert counts("outer", "inner") == [(15.0, 5.0), (100.0, 40.0), (6.0, 2.0)]
    recorder.stop()


def test_counters_that_take_turns_are_scaled(fake_recorder: Callable[..., Any]) -> None:
    """Enabled for 40 ns and running for 10 of them: 25 seen stand for 100."""
    _native.set_counters([INSTRUCTIONS])
    _native.set_counts(100, 100, (7,))
    recorder = fake_recorder()
    with profile.operation("scaled"):
        _native.set_counts(140, 110, (32,))
    assert counts("scaled")[0] == (100.0,)
    recorder.stop()


def test_what_is_counted_while_nothing_records_is_nobodys(
    fake_recorder: Callable[..., Any],
) -> None:
    _native.set_counters([INSTRUCTIONS])
    _native.set_counts(0, 0, (0,))
    recorder = fake_recorder()
    with profile.operation("work"):
        _native.set_counts(3, 3, (3,))
    _native.set_active(0)
    _native.set_counts(1000, 1000, (1000,))
    _native.set_active(1)
    with profile.operation("work"):
        _native.set_counts(1004, 1004, (1004,))
    assert counts("work") == [(7.0,), ()]
    recorder.stop()


def test_a_new_session_begins_at_nothing(fake_recorder: Callable[..., Any]) -> None:
    _native.set_counters([INSTRUCTIONS])
    _native.set_counts(0, 0, (0,))
    recorder = fake_recorder()
    with profile.operation("work"):
        _native.set_counts(3, 3, (3,))
    recorder.stop()
    recorder = fake_recorder()
    assert _native.counts() == {}
    recorder.stop()


@pytest.mark.parametrize("wrong", [[(0, 1)], [5], [(0, 1, True)] * 9, "instructions"])
def test_what_is_no_list_of_counters_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        _native.set_counters(wrong)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "the system does not permit it"),
        (errno.ENOENT, "this machine has none, as most virtual machines"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="perf_event_open is Linux's")
def test_what_the_machine_refuses_has_its_reason(number: int, reason: str) -> None:
    """Hardware is refused, page faults are allowed for the program's own code only."""

    def attempt(kind: int, config: int, user_only: bool) -> int:
        return 0 if kind == 1 and user_only else number

    found = Counters(attempt)
    assert found.names == ["CPU ns", "page faults"]
    assert found.absent == (
        "no counts of instructions, cycles, cache misses, branch misses, context switches, "
        f"core changes: {found.absent.partition(': ')[2]}"
    )
    assert reason in found.absent


def test_where_nothing_can_be_counted_the_program_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without perf_event_open: a sentence in the report, and all the rest."""
    refused = partial(Counters, lambda *counter: errno.EPERM)
    monkeypatch.setattr("redline.profile.record.counters.Counters", refused)
    with profile.session(tmp_path / "session", mode="light", counters=True):
        profile.step()
    summary = summarize(tmp_path / "session")
    assert summary.processes[0].steps == 1
    assert summary.counters == []
    text = render_text(summary)
    assert "no counts of instructions, cycles, cache misses, branch misses, CPU ns" in text
    assert "counters by operation" not in text


def test_a_recording_that_does_not_begin_leaves_no_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each mark of a later one would read them, for nobody."""
    wanted: list[list[tuple[int, int, bool]]] = []
    monkeypatch.setattr(_native, "set_counters", wanted.append)
    monkeypatch.setattr(
        "redline.profile.record.counters.Counters", partial(Counters, lambda *counter: 0)
    )
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(ProfilerConflictError):
            profile.session(tmp_path / "s", counters=True).__enter__()
    finally:
        sys.settrace(None)
    assert len(wanted) == 2
    assert len(wanted[0]) == 8  # all that are known
    assert wanted[1] == []


def permitted() -> bool:
    return sys.platform == "linux" and _native.try_counter(1, 2, True) == 0


FAULTS = """
import mmap, os
from redline import profile
def touch(pages):
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for k in range(pages):
        memory[k * mmap.PAGESIZE] = 1
touch(100)
with profile.operation("few"):
    touch(50)
with profile.operation("many"):
    touch(400)
if os.fork() == 0:
    with profile.operation("in the child"):
        touch(200)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not permitted(), reason="this machine does not let programs count page faults")
def test_page_faults_are_those_of_their_operation(
    profiled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each page that is touched first is a fault; the interpreter may add some of its own."""
    profiled.run(FAULTS, mode="light", counters=True)
    summary = summarize(profiled.session)
    parent, child = (process.pid for process in summary.processes)
    faults = {
        (row.pid, row.operation): row.count
        for row in summary.counters
        if row.counter == "page faults"
    }
    assert 50 <= faults[parent, "few"] < 150
    assert 400 <= faults[parent, "many"] < 500
    assert 200 <= faults[child, "in the child"] < 350
    assert (parent, "in the child") not in faults
    text = render_text(summary)
    assert "  counters by operation:" in text
    assert main(["report", str(profiled.session), "--csv", str(profiled.directory / "csv")]) == 0
    table = (profiled.directory / "csv" / "counters.csv").read_text()
    assert table.startswith("process,pid,operation,counter,count\n")


@pytest.mark.skipif(not permitted(), reason="this machine does not let programs count page faults")
def test_a_file_under_a_counters_number_is_left_alone(profiled: Any) -> None:
    """A program that closes all files, as daemons do, opens its own under the same numbers."""
    done = profiled.run(
        """
import os
from redline import profile
with profile.operation("before"):
    pass
os.closerange(3, 200)
reading, writing = os.pipe()
copies = [os.dup(reading) for _ in range(50)]
os.write(writing, b"all of it")
for _ in range(20):
    with profile.operation("after"):
        pass
print(os.read(reading, 100))
""",
        mode="light",
        counters=True,
    )
    assert done.stdout == "b'all of it'\n"
