"""What a program says of itself: names and progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline import profile
from redline.errors import ConfigError
from redline.profile import marks
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.record.said import Said
from redline.profile.report.perfetto import write_perfetto
from redline.profile.report.text import render_text

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_progress_is_written_twice_a_second_and_at_the_end_of_a_window() -> None:
    """Said every 100 ms, 0 to 1.2 s: kept are those at 0, 500 and 1,000 ms, and the last."""
    clock, notes = Clock(), []
    said = Said(lambda event, **values: notes.append((event, values)), clock)
    said("progress", {"done": 0.0, "total": 100.0})  # no window is open
    said.begin_window()
    for k in range(13):
        clock.now_ns = k * 100 * MS
        said("progress", {"done": float(k), "total": 100.0})
    said.end_window()
    said("progress", {"done": 50.0, "total": 100.0})
    said.begin_window()
    said("progress", {"done": 60.0, "total": 100.0})
    said.end_window()
    assert [(v["time_ns"] // MS, v["window"], v["done"]) for _, v in notes] == [
        (0, 1, 0.0),
        (500, 1, 5.0),
        (1000, 1, 10.0),
        (1200, 1, 12.0),
        (1200, 2, 60.0),
    ]


def test_without_a_session_progress_does_nothing() -> None:
    profile.progress(1, 2)
    profile.progress("not looked at", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(-1, 10), (1, 0), (float("nan"), 10), (1, float("inf"))])
def test_progress_that_is_none_is_refused(wrong: tuple[float, float]) -> None:
    marks.listen(lambda event, values: None)
    try:
        with pytest.raises(ConfigError, match="give what is done, 0 or more, and the total"):
            profile.progress(*wrong)
    finally:
        marks.listen(None)


def test_a_name_that_is_none_is_refused() -> None:
    for wrong in ("", None, 3):
        with pytest.raises(ConfigError, match='Give a short one such as "learner"'):
            profile.process_name(wrong)  # type: ignore[arg-type]


def test_a_session_has_names_and_progress(profiled: Any) -> None:
    """The parent is named before it forks; the child, which is another process, names itself."""
    profiled.run(
        """
import os, time
from redline import profile
profile.process_name("learner")
child = os.fork()
if child == 0:
    profile.process_name("actor 1")
    os._exit(0)
os.waitpid(child, 0)
if os.fork() == 0:
    os._exit(0)
os.wait()
for k in range(5):
    profile.progress(100 * k, 1000)
    time.sleep(0.01)
""",
        mode="light",
    )
    summary = summarize(profiled.session)
    assert [process.name for process in summary.processes] == ["learner", "actor 1", "program.py"]
    learner = summary.processes[0]
    assert (learner.progress_done, learner.progress_total) == (400.0, 1000.0)
    assert learner.progress_per_s * learner.progress_whole_s == pytest.approx(1000.0)
    text = render_text(summary)
    assert f"learner (pid {learner.pid}," in text
    assert "progress: 40.0% done (400 of 1,000), " in text
    assert json.dumps(summary.to_json()["processes"][1]["progress_done"]) == "null"
    trace = profiled.directory / "out.pftrace"
    write_perfetto(open_session(profiled.session), trace)
    assert b"learner" in trace.read_bytes()
