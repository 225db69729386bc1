"""Schedules of windows on an injected clock, and the early exit after the last one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.profile.analyse.summary import summarize
from redline.profile.record.options import Options
from redline.profile.record.window import Window


class Schedule:
    """A window whose clock moves only when told, and which never waits for the real one."""

    def __init__(self, **options: Any) -> None:
        self.now_s, self.seen = 0.0, []
        self.step: Callable[[], None] = lambda: None
        self.window = Window(
            Options(**options),
            lambda: self.seen.append(("begin", self.now_s)),
            lambda: self.seen.append(("end", self.now_s)),
            lambda: self.seen.append(("over", self.now_s)),
            clock=lambda: self.now_s,
        )
        self.window.open(lambda hook: setattr(self, "step", hook))

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.window.look()

    def run_steps(self, number: int) -> None:
        """Steps of one second each, looked at by steps only."""
        for _ in range(number):
            self.now_s += 1
            self.step()


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Without the thread that looks when a time has come: `tick` does that."""
    monkeypatch.setattr(Window, "_keep_time", lambda self: None)
    return Schedule


def test_without_options_one_window_lasts(schedule: Any) -> None:
    windows = schedule()
    windows.tick(1e6)
    assert windows.seen == [("begin", 0)]


def test_a_schedule_in_steps(schedule: Any) -> None:
    """Skip 2, record 3 of each 5, twice: steps 3 to 5 and 8 to 10."""
    windows = schedule(delay_steps=2, for_steps=3, every_steps=5, repeat=2)
    windows.run_steps(30)
    assert windows.seen == [("begin", 2), ("end", 5), ("begin", 7), ("end", 10), ("over", 10)]


def test_a_schedule_in_seconds_without_end(schedule: Any) -> None:
    """Late by 4, then 2 of each 10 seconds."""
    windows = schedule(delay_s=4, for_s=2, every_s=10)
    for _ in range(28):
        windows.tick(1)
    assert windows.seen == [
        ("begin", 4),
        ("end", 6),
        ("begin", 14),
        ("end", 16),
        ("begin", 24),
        ("end", 26),
    ]


def test_the_later_of_two_intervals_and_the_shorter_of_two_lengths(schedule: Any) -> None:
    """Every 4 steps and every 6 s, a step a second: from 0, 6 and 12 on; 2 steps are shorter."""
    windows = schedule(for_s=3, for_steps=2, every_s=6, every_steps=4)
    windows.run_steps(15)
    assert windows.seen == [
        ("begin", 0),
        ("end", 2),
        ("begin", 6),
        ("end", 8),
        ("begin", 12),
        ("end", 14),
    ]


def test_a_window_that_lasts_into_the_next_is_followed_at_once(schedule: Any) -> None:
    """5 s long, due every 2 steps of a second each."""
    windows = schedule(for_s=5, every_steps=2, repeat=2)
    windows.run_steps(12)
    assert windows.seen == [("begin", 0), ("end", 5), ("begin", 5), ("end", 10), ("over", 10)]


def test_once_closed_nothing_begins(schedule: Any) -> None:
    windows = schedule(delay_s=4, for_s=1)
    windows.window.close()
    windows.tick(10)
    assert windows.seen == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"every_s": 5.0}, "windows that never end cannot repeat"),
        ({"for_s": 1.0, "repeat": 2}, "does not say when"),
        ({"for_s": 5.0, "every_s": 5.0}, "for_s=5 leaves nothing of every_s=5 unrecorded"),
        ({"for_steps": 9, "every_steps": 3}, "for_steps=9 leaves nothing of every_steps=3"),
        ({"exit_after_window": True}, "needs a last window"),
        ({"exit_after_window": True, "for_s": 1.0, "every_s": 2.0}, "needs a last window"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Options(**options)


def test_windows_are_recorded_again_and_again(profiled: Any) -> None:
    """Of 20 steps with 1, 2, ... 20 calls: steps 3 and 4, 8 and 9, 13 and 14 are recorded."""
    profiled.run(
        """
import mujoco
from redline import profile
for k in range(1, 21):
    for _ in range(k):
        mujoco.spin(1_000)
    profile.progress(k, 40)
    profile.step()
""",
        delay_steps=2,
        for_steps=2,
        every_steps=5,
        repeat=3,
    )
    summary = summarize(profiled.session)
    (row,) = [row for row in summary.functions if row.function == "mujoco.spin"]
    assert row.calls == 3 + 4 + 8 + 9 + 13 + 14
    (process,) = summary.processes
    assert process.steps == 6
    assert (process.progress_done, process.progress_total) == (14.0, 40.0)


def test_each_window_is_in_the_phase_around_it(profiled: Any) -> None:
    """The phase began before all three; a child is in none of its parent's."""
    profiled.run(
        """
import os
from redline import profile
with profile.phase("training"):
    for k in range(20):
        sum(range(1000))
        profile.step()
    child = os.fork()
    if child == 0:
        for k in range(5):
            profile.step()
        os._exit(0)
    os.waitpid(child, 0)
""",
        mode="light",
        delay_steps=2,
        for_steps=2,
        every_steps=5,
        repeat=3,
    )
    summary = summarize(profiled.session)
    parent, child = (process.pid for process in summary.processes)
    assert [process.steps for process in summary.processes] == [6, 2]
    assert {cell.phase for cell in summary.cells if cell.pid == parent} == {"training"}
    assert {cell.phase for cell in summary.cells if cell.pid == child} == {""}


CHILD = """
import os
from redline import profile
with profile.phase("setup"):
    child = os.fork()
    if child == 0:
        with profile.session("s", mode="light"):
            profile.step()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_forked_child_that_records_by_itself_is_in_no_phase(tmp_path: Path) -> None:
    """Its parent, which is in one, records nothing."""
    subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, check=True, timeout=60)
    summary = summarize(tmp_path / "s")
    assert {cell.phase for cell in summary.cells} == {""}
    assert summary.processes[0].steps == 1


def test_windows_by_time_begin_again(profiled: Any) -> None:
    """The program waits for the begin of its third window, which only time can bring."""
    profiled.run(
        """
import time
from redline.profile import _native
windows = was = 0
while windows < 3:
    active = _native.get_active() > 0
    windows += active and not was
    was = active
    time.sleep(0.001)
""",
        mode="light",
        for_s=0.5,
        every_s=1.0,
    )
    from redline.profile import layout
    from redline.profile.reader import open_session

    (process,) = open_session(profiled.session).processes
    codes = [code for shard in process.threads for code in shard.codes.tolist()]
    # On a busy machine the program may have seen less than all of them.
    assert codes.count(layout.CODE_WINDOW_ON) >= 3


EXIT = """
import atexit, os, time
from redline import profile
atexit.register(lambda: print("at exit"))
child = os.fork()
if child == 0:
    time.sleep(0.5)
    os._exit(0)
try:
    for k in range(1000):
        time.sleep(0.01)
        profile.step()
finally:
    print("finally", os.waitpid(child, 0)[1])
"""


def test_the_program_ends_after_the_last_window(profiled: Any) -> None:
    """`finally` and exit handlers run, the status is 0, and the forked child goes on."""
    done = profiled.run(EXIT, mode="light", for_steps=3, exit_after_window=True)
    assert done.stdout == "finally 0\nat exit\n"
    summary = summarize(profiled.session)
    assert [process.ended for process in summary.processes] == [True, True]
    assert summary.processes[0].steps == 3


def test_a_wait_is_interrupted_by_the_early_exit(profiled: Any) -> None:
    profiled.run("import time\ntime.sleep(100)", mode="light", for_s=2.0, exit_after_window=True)
    assert summarize(profiled.session).processes[0].wall_s < 50


def test_a_program_that_handles_sigterm_decides_itself(profiled: Any) -> None:
    done = profiled.run(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "time.sleep(100)",
        check=False,
        mode="light",
        for_s=2.0,
        exit_after_window=True,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_sigterm_of_others_means_what_it_did(profiled: Any) -> None:
    done = profiled.run(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(100)",
        check=False,
        mode="light",
        for_s=50,
        exit_after_window=True,
    )
    assert done.returncode == -signal.SIGTERM
