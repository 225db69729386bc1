"""Traces and differences, against events and cells given by hand."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redline.profile import layout
from redline.profile.analyse.summary import Cell, ProcessRow, Summary, summarize
from redline.profile.commands import main
from redline.profile.reader import Session, Shard, open_session
from redline.profile.report.diff import diff_summaries, render_diff
from redline.profile.report.text import render_text
from redline.profile.report.trace import row_times, write_trace
from tests.profile import streams


def summary(**seconds: float) -> Summary:
    """A session whose only process spent these seconds of Python in each operation."""
    cells = [
        Cell("program", 1, "", name, "python", False, raw_s=s, corrected_s=s)
        for name, s in seconds.items()
    ]
    return Summary("dir", "full", sum(seconds.values()), [], cells, [], [], 0, [])


def test_differences_largest_first() -> None:
    """simulation +2 s, replay new with 1 s, inference unchanged."""
    before, after = (
        summary(simulation=4.0, inference=1.0),
        summary(simulation=6.0, inference=1.0, replay=1.0),
    )
    rows = [(row.operation, row.change_s) for row in diff_summaries(before, after)]
    assert rows == [("simulation", 2.0), ("replay", 1.0), ("inference", 0.0)]
    text = render_diff(before, after)
    assert "+50.0" in text
    assert "new" in text


def test_across_modes_levels_that_one_does_not_know_are_one() -> None:
    """4 s of backend in A and 5 s that light mode calls Python in B: both were running."""
    before, after = summary(learning=4.0), summary(learning=5.0, forward=1.0)
    (cell,) = before.cells
    before.cells[:] = [dataclasses.replace(cell, level="backend")]
    after = dataclasses.replace(after, mode="light")
    rows = {(row.operation, row.level): row.change_s for row in diff_summaries(before, after)}
    assert rows == {("learning", "running"): 1.0, ("forward", "running"): 1.0}
    inferred = frozenset({"forward"})
    rows = {
        (row.operation, row.level): row.change_s for row in diff_summaries(before, after, inferred)
    }
    assert rows == {("all else", "running"): 2.0}
    assert render_diff(before, after).startswith("note: A was recorded in mode full, B in mode")


def test_steps_make_sessions_of_different_length_comparable() -> None:
    """4 s in 2,000 steps and 3 s in 1,000: 2,000 and 3,000 us each."""
    before, after = summary(simulation=4.0), summary(simulation=1.0, replay=2.0)
    for each, steps in ((before, 2000), (after, 1000)):
        row = ProcessRow("program", 1, 0, 4.0, 1.0, True, {}, [], steps, recorded_cpu_s=1.0)
        each.processes.append(row)
    text = render_diff(before, after)
    assert "A: dir, 4.000 s over all processes in 2,000 steps, 2,000.0 us each" in text
    assert "B: dir, 3.000 s over all processes in 1,000 steps, 3,000.0 us each" in text
    assert "A has 2,000 steps, B 1,000" in text
    table = render_text(after).splitlines()
    assert table[1] == "largest operation: replay of program (pid 1), 2.000 s of work"
    assert table[3].endswith("1.000 s CPU, 1,000 steps")
    assert table[4].split()[:5] == ["operation", "s", "+-", "%", "us/step"]
    assert table[5].split()[:5] == ["replay", "2.000", "-", "66.7", "2000.0"]


def test_memory_and_cpu_time_are_counters(tmp_path: Path) -> None:
    """A process whose base is 5 us; at 3 us it held 2 KiB and had used 7 us of CPU time."""
    made = streams.process([], end_ns=9000)
    made.start |= {"base_ns": 5000}
    rows = [(3000, layout.CODE_BEAT), (2, layout.CODE_RSS), (7, layout.CODE_PROCESS_CPU)]
    deltas, codes = np.array(rows).T
    vars(made)["monitor"] = Shard(
        Path("monitor.arrow"), deltas.astype(np.uint32), codes.astype(np.uint16), None
    )
    output = tmp_path / "trace.json"
    write_trace(Session(Path("nowhere"), {}, [made]), output)
    events = json.loads(output.read_text())["traceEvents"]
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("resident memory", 8.0, {"bytes": 2048}),
        ("CPU time", 8.0, {"us": 7}),
    ]


def test_a_trace_is_well_nested_and_in_order(profiled: Any) -> None:
    profiled.run(
        """
import threading, mujoco
from redline import profile
def work():
    with profile.phase("p"), profile.operation("simulation"):
        mujoco.spin(1_000_000)
        profile.step()
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    )
    output = profiled.directory / "trace.json"
    count = write_trace(open_session(profiled.session), output)
    events = json.loads(output.read_text())["traceEvents"]
    assert len(events) == count
    stacks: dict[tuple[int, int], list[str]] = {}
    last: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] in "BE":
            track = event["pid"], event["tid"]
            assert event["ts"] >= last.get(track, 0.0)
            last[track] = event["ts"]
            if event["ph"] == "B":
                stacks.setdefault(track, []).append(event["name"])
            else:
                assert stacks[track].pop() == event["name"]
    assert not any(stacks.values())
    begun = [e["name"] for e in events if e["ph"] == "B"]
    assert begun.count("simulation") == begun.count("spin") == 2
    assert sum(e["ph"] == "i" for e in events) == 2


def test_row_times_agree_with_a_plain_reading(fake_recorder: Any) -> None:
    from redline import profile
    from redline.profile import _native
    from redline.profile.reader import read_shard
    from tests.profile.shards import read_events

    recorder = fake_recorder()
    rng = np.random.default_rng(0)
    for gap in rng.integers(0, 3 * 10**9, 200).tolist():
        with profile.operation("simulation"):
            recorder.tick(int(gap))
        if gap % 7 == 0:
            _native.flush()
    recorder.stop()
    path = recorder.directory / "thread-00000.arrow"
    shard = read_shard(path)
    times = row_times((shard.deltas, shard.codes))[shard.codes >= 16].tolist()
    assert times == [e[0] for e in read_events(path, _native.names()) if e[1] in ("begin", "end")]


def test_text_and_commands(profiled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    profiled.run("import mujoco\nmujoco.spin(5_000_000)\n")
    text = render_text(summarize(profiled.session))
    assert "program.py" in text
    assert "mujoco.spin" in text
    assert "not corrected" in text
    session = str(profiled.session)
    assert main(["diff", session, session]) == 0
    assert "+0.000" in capsys.readouterr().out
    assert main(["trace", session, "--out", str(profiled.directory / "t.json")]) == 0
    assert main(["trace", session, "--out", str(profiled.directory / "t.pdf")]) == 2
    assert "no trace format '.pdf'" in capsys.readouterr().err
    assert "% of the recorded time has a level" in text
    assert main(["report", session, session, "--sampled", session]) == 2
    assert "--sampled is compared with one session" in capsys.readouterr().err
    assert main(["report", session, "--sampled", session]) == 2
    assert "holds no samples" in capsys.readouterr().err
    assert main(["nonsense"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample-hz", "-1"], "sample_hz=-1.0 is negative"),
        (["--sample-hz", "nan"], "sample_hz=nan is not finite"),
        (["--sample-hz", "1e6"], "sample_hz=1e+06 is more than the sampler can do"),
        (["--gpu-window-s", "30"], "gpu_window_s=30 does not fit into gpu_every_s=20"),
        (["--gpu-every-s", "0.5"], "gpu_window_s=1 does not fit into gpu_every_s=0.5"),
        (["--for-s", "inf"], "for_s=inf is not finite"),
    ],
)
def test_wrong_options_are_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    session, trace = tmp_path / "session", tmp_path / "ran"
    command = ["--", sys.executable, "-c", f"open({str(trace)!r}, 'w')"]
    assert main(["profile", "--out", str(session), *options, *command]) == 2
    assert message in capsys.readouterr().err
    assert not session.exists()
    assert not trace.exists()
