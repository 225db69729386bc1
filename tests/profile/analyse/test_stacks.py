"""Functions and lines from stacks made by hand, and from a program of known shares."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from redline import profile
from redline.errors import ConfigError
from redline.profile import layout
from redline.profile.analyse.stacks import (
    Code,
    FlameNode,
    Node,
    flame,
    hottest_line,
    import_rows,
    is_of_program,
    python_functions,
    python_lines,
    read_stacks,
    stack_of,
    stacks_of,
)
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.timeline import build_timeline
from redline.profile.commands import main
from redline.profile.reader import open_session
from redline.profile.report.speedscope import write_speedscope
from redline.profile.report.text import render_text
from tests.profile import streams

MS = 1_000_000

# main (line 3) calls learn (11), which calls itself (12); main (4) calls act (21).
ROWS = [
    ["code", 0, "main", "/p/run.py", 1],
    ["node", 0, -1, 0, 3],
    ["code", 1, "learn", "/p/run.py", 10],
    ["node", 1, 0, 1, 11],
    ["at", 15, 1, 10 * MS],  # simulation: main:3 > learn:11
    ["node", 2, 1, 1, 12],
    ["at", 25, 2, 20 * MS],  # simulation: main:3 > learn:11 > learn:12
    ["node", 3, -1, 0, 4],
    ["at", 65, 3, 5 * MS],  # inference: main:4
    ["code", 2, "act", "/p/agent.py", 20],
    ["node", 4, 3, 2, 21],
    ["at", 75, 4, 30 * MS],  # inference: main:4 > act:21
    ["at", 95, 3, 35 * MS],  # after it, in none
]
EVENTS = [
    (0, layout.CODE_WINDOW_ON),
    (10, streams.begin(streams.SIMULATION)),
    (50, streams.end(streams.SIMULATION)),
    (60, streams.begin(streams.INFERENCE)),
    (90, streams.end(streams.INFERENCE)),
]


def timeline_with(directory: Path, rows: list[Any]) -> Any:
    process = streams.process(EVENTS)
    process.directory = directory
    (directory / layout.STACKS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build_timeline(process)


def test_own_and_inclusive_time_by_operation(tmp_path: Path) -> None:
    """Worked by hand: recursion counts once, a line's own time is without the lines it calls."""
    timeline = timeline_with(tmp_path, ROWS)
    stacks = stacks_of(timeline)
    assert stacks is not None
    functions = {
        (row.operation, row.function): (row.self_s, row.total_s, row.samples)
        for row in python_functions(timeline.process, stacks)
    }
    assert functions == {
        ("simulation", "main"): (0, 0.030, 2),
        ("simulation", "learn"): (0.030, 0.030, 2),
        ("inference", "main"): (0.005, 0.035, 2),
        ("inference", "act"): (0.030, 0.030, 1),
        ("other", "main"): (0.035, 0.035, 1),
    }
    lines = {
        (row.operation, row.function, row.line): (row.self_s, row.total_s)
        for row in python_lines(timeline.process, stacks)
    }
    assert lines == {
        ("simulation", "main", 3): (0, 0.030),
        ("simulation", "learn", 11): (0.010, 0.030),
        ("simulation", "learn", 12): (0.020, 0.020),
        ("inference", "main", 4): (0.005, 0.035),
        ("inference", "act", 21): (0.030, 0.030),
        ("other", "main", 4): (0.035, 0.035),
    }
    assert [row.file for row in python_lines(timeline.process, stacks)][-1] == "/p/run.py"


def test_the_flame_graph_holds_each_operation_once(tmp_path: Path) -> None:
    stacks = stacks_of(timeline_with(tmp_path, ROWS))
    assert stacks is not None
    boxes = flame(stacks)
    assert {box for box in boxes if box.parent < 0} == {
        FlameNode(-1, "simulation", "", 0, 0.030),
        FlameNode(-1, "inference", "", 0, 0.035),
        FlameNode(-1, "other", "", 0, 0.035),
    }
    learn = [box for box in boxes if box.name == "learn"]
    assert [(boxes[box.parent].name, box.total_s) for box in learn] == [
        ("main", 0.030),
        ("learn", 0.020),
    ]
    # Of 100 ms only inference and other, each with main, have 31.
    assert len(flame(stacks, smallest=0.31)) == 4


def test_the_hottest_line_comes_with_the_stack_it_was_mostly_seen_in(tmp_path: Path) -> None:
    """Simulation: learn:12 has 20 of 30 ms. Inference: act:21 30 of 35. Other: main:4 all 35."""
    stacks = stacks_of(timeline_with(tmp_path, ROWS))
    assert stacks is not None
    found = {
        operation: ([node.line for node in stack], own, whole)
        for operation, (stack, own, whole) in hottest_line(stacks).items()
    }
    assert found == {
        "simulation": ([3, 11, 12], 20 * MS, 30 * MS),
        "inference": ([4, 21], 30 * MS, 35 * MS),
        "other": ([4], 35 * MS, 35 * MS),
    }


PACKAGES = "/usr/lib/python3.11/site-packages"

# Line 1 imports torch, which imports json; line 2 imports a package that a helper imports late.
IMPORTS = [
    ["code", 0, "<module>", "/p/run.py", 1],
    ["node", 0, -1, 0, 1],
    ["code", 1, "_find_and_load", "<frozen importlib._bootstrap>", 1],
    ["node", 1, 0, 1, 9],
    ["at", 5, 1, 2 * MS],  # run:1, finding what is to be imported
    ["code", 2, "<module>", f"{PACKAGES}/torch/__init__.py", 1],
    ["node", 2, 1, 2, 40],
    ["at", 15, 2, 10 * MS],  # run:1 > importlib > torch:40
    ["node", 3, 2, 1, 9],
    ["code", 3, "<module>", "/usr/lib/python3.11/json/__init__.py", 1],
    ["node", 4, 3, 3, 7],
    ["at", 25, 4, 5 * MS],  # run:1 > importlib > torch:40 > importlib > json:7
    ["node", 5, -1, 0, 2],
    ["code", 4, "helper", f"{PACKAGES}/tool.py", 1],
    ["node", 6, 5, 4, 3],
    ["node", 7, 6, 1, 9],
    ["code", 5, "<module>", f"{PACKAGES}/late/parts.py", 1],
    ["node", 8, 7, 5, 1],
    ["at", 35, 8, 3 * MS],  # run:2 > tool:3 > importlib > late.parts:1
]


def test_imports_are_named_by_what_the_program_imports(tmp_path: Path) -> None:
    """Line 1: 2 ms of finding, 10 of torch and 5 of what torch imports; line 2: 3 ms."""
    timeline = timeline_with(tmp_path, IMPORTS)
    stacks = stacks_of(timeline)
    assert stacks is not None
    rows = import_rows(timeline.process, stacks)
    assert [(row.module, row.file, row.line, row.total_s, row.samples) for row in rows] == [
        ("torch", "/p/run.py", 1, pytest.approx(0.017), 3),
        ("late.parts", "/p/run.py", 2, pytest.approx(0.003), 1),
    ]
    # The import system's own time is that of the line that imports.
    own: dict[str, float] = {}
    for row in python_functions(timeline.process, stacks):
        own[Path(row.file).name] = own.get(Path(row.file).name, 0.0) + row.self_s
    assert own["run.py"] == pytest.approx(0.002)
    assert not any("importlib" in name for name in own)


def test_installed_files_are_not_the_programs() -> None:
    assert is_of_program("/home/me/train.py")
    assert not is_of_program(f"{PACKAGES}/torch/nn.py")
    assert not is_of_program("/usr/lib/python3.11/json/__init__.py")
    assert not is_of_program("<string>")


def test_rows_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    """A caller that comes later would be a circle, a huge number no time."""
    odd = [
        7,
        [],
        ["what", 1],
        ["code", 9, "f", "f.py", 1],
        ["code", 3, 5, "f.py", 1],
        ["node", 5, 5, 0, 1],
        ["node", 5, 9, 0, 1],
        ["node", 5, 0, 9, 1],
        ["at", 1, 5, 1],
        ["at", -1, 0, 1],
        ["at", 1, 0, 1 << 80],
        ["at", True, 0, 1],
        ["at", 1, 0],
    ]
    timeline = timeline_with(tmp_path, ROWS + odd)
    with (tmp_path / layout.STACKS).open("a") as file:
        file.write('["at", 1')
    stacks = stacks_of(timeline)
    assert stacks is not None
    assert len(stacks.times_ns) == 5
    assert stacks.codes[2] == Code("act", "/p/agent.py", 20)
    assert stack_of(stacks, 4) == [Node(-1, 0, 4), Node(3, 2, 21)]
    assert timeline.process.problems == [
        f"stacks.jsonl: {len(odd) + 1} lines that make no sense, ignored"
    ]


def test_samples_before_a_hole_are_kept(tmp_path: Path) -> None:
    """Zeros behind whole lines, as after a power cut."""
    timeline = timeline_with(tmp_path, ROWS)
    with (tmp_path / layout.STACKS).open("ab") as file:
        file.write(bytes(1 << 17))
    stacks = stacks_of(timeline)
    assert stacks is not None
    assert len(stacks.times_ns) == 5
    assert "ignored with all behind it" in timeline.process.problems[0]


def busy(n: int) -> int:
    total = 0
    for i in range(n):
        total += i & 3
    return total


def test_a_program_of_known_shares(tmp_path: Path) -> None:
    """Part of the time in one function, part in another, told by line and by operation.

    Their lengths change, or the looks would keep step with them and see the same part each time.
    They are measured within the operations: as one ends, a busy machine gives the core away, and
    that time is neither's.
    """
    taken = {"learning": 0.0, "acting": 0.0}
    lengths = random.Random(1)

    def learn() -> None:
        busy(lengths.randrange(10_000, 90_000))

    def act() -> None:
        time.sleep(lengths.uniform(0.0005, 0.0055))

    with profile.session(tmp_path / "s", mode="sample"):
        begin = time.perf_counter()
        while time.perf_counter() < begin + 1.0:
            for name, work in (("learning", learn), ("acting", act)):
                with profile.operation(name):
                    began = time.perf_counter()
                    work()
                    taken[name] += time.perf_counter() - began
        whole = time.perf_counter() - begin
    session = open_session(tmp_path / "s")
    summary = summarize(session)
    seen = {(row.operation, row.function): row for row in summary.python_functions}
    share = seen["learning", "busy"].self_s / whole
    # Four standard errors of some 100 samples. On a busy machine they are fewer, of unequal weight.
    stacks = read_stacks(session.processes[0])
    assert stacks is not None
    weights = stacks.weights_ns.astype(float)
    most = 4 * 0.5 * ((weights**2).sum() / weights.sum() ** 2) ** 0.5
    assert abs(share - taken["learning"] / whole) < most
    waits = [row for (operation, name), row in seen.items() if name.endswith("act")]
    assert abs(sum(row.self_s for row in waits) / whole - taken["acting"] / whole) < most
    hottest = summary.python_lines[0]
    assert Path(hottest.file).name == "test_stacks.py"
    assert "Python lines of the main thread" in render_text(summary)

    output = tmp_path / "out.speedscope.json"
    assert main(["trace", str(session.directory), "--out", str(output)]) == 0
    content = json.loads(output.read_text())
    (shown,) = content["profiles"]
    assert shown["type"] == "sampled"
    assert len(shown["samples"]) == len(shown["weights"]) > 10
    frames = content["shared"]["frames"]
    outermost = {frames[stack[0]]["name"] for stack in shown["samples"]}
    assert outermost <= {"learning", "acting", "other"}
    assert {"name", "file", "line"} <= set(frames[shown["samples"][0][-1]])


def test_the_time_before_a_function_begins_is_its_callers(tmp_path: Path) -> None:
    """`exec` compiles for milliseconds. The module that it then runs does next to nothing."""
    source = "def f(a):\n    return a + 1\n" * 800

    def compiles() -> None:
        exec(source, {})

    with profile.session(tmp_path / "s", mode="sample"):
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            compiles()
    own = {"compiles": 0.0, "<module>": 0.0}
    for row in summarize(tmp_path / "s").python_functions:
        name = row.function.rpartition(".")[2]
        own[name] = own.get(name, 0.0) + row.self_s
    assert own["compiles"] > 4 * own["<module>"] >= 0


def test_a_session_without_stacks_has_no_speedscope_file(tmp_path: Path) -> None:
    with profile.session(tmp_path / "s", mode="full", lines=False):
        busy(10)
    assert not list((tmp_path / "s").rglob(layout.STACKS))
    with pytest.raises(ConfigError, match="without --no-lines"):
        write_speedscope(open_session(tmp_path / "s"), tmp_path / "x.speedscope.json")


def test_a_forked_child_has_stacks_of_its_own(profiled: Any) -> None:
    profiled.run(
        """
        import os, time

        def work():
            end = time.thread_time() + 0.3
            while time.thread_time() < end:
                pass

        pid = os.fork()
        work()
        if pid == 0:
            raise SystemExit
        os.waitpid(pid, 0)
        """,
        mode="sample",
    )
    session = open_session(profiled.session)
    for process in session.processes:
        stacks = stacks_of(build_timeline(process))
        assert stacks is not None
        assert "work" in {code.function for code in stacks.codes}
        assert process.problems == []


def test_threads_go_on_while_the_main_thread_waits_and_is_looked_at(profiled: Any) -> None:
    """Under a profile function of 3.11, a thread asked to look up in place of the main one spun."""
    profiled.run(
        """
        import threading
        from redline.profile import _stacks

        def small(x):
            return x + 1

        def work():
            for i in range(20_000):
                small(i)

        _stacks.pause()
        _stacks.stop()
        _stacks.start("/dev/null", 0, 200_000)  # 5,000 looks a second
        _stacks.resume()
        for _ in range(5):
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        print(_stacks.stop()["lost"] >= 0)
        """,
        mode="full",
    )


def test_full_mode_names_lines(tmp_path: Path) -> None:
    with profile.session(tmp_path / "s", mode="full"), profile.operation("learning"):
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            busy(1_000)
    rows = summarize(tmp_path / "s").python_functions
    assert ("learning", "busy") in {(row.operation, row.function) for row in rows}


def test_a_missing_extension_is_named_and_the_rest_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redline import profile as package

    monkeypatch.delattr(package, "_stacks", raising=False)
    monkeypatch.setitem(sys.modules, "redline.profile._stacks", None)
    with profile.session(tmp_path / "s", mode="sample"), profile.operation("learning"):
        busy(10)
    summary = summarize(tmp_path / "s")
    assert any("_stacks was not built" in problem for problem in summary.problems)
    assert "learning" in {cell.operation for cell in summary.cells}


@pytest.mark.parametrize(
    ("said", "start", "operation"),
    [
        (1, {}, "inference"),
        (0, {}, "simulation"),
        (2, {"in_main_thread": True}, "other"),  # it had no event, and has no shard
        (None, {"in_main_thread": False}, "other"),
        (None, {"in_main_thread": True}, "simulation"),  # of a window that a timer began
        (None, {}, "simulation"),  # of an earlier version
    ],
)
def test_samples_are_in_what_the_main_thread_was_in(
    said: int | None, start: dict[str, Any], operation: str, tmp_path: Path
) -> None:
    """Of two threads the first simulates meanwhile, and the second infers."""
    process = streams.process(
        [(0, streams.begin(streams.SIMULATION)), (90, streams.end(streams.SIMULATION))],
        [(0, streams.begin(streams.INFERENCE)), (90, streams.end(streams.INFERENCE))],
    )
    process.directory, process.said_main_shard = tmp_path, said
    process.start |= start
    (tmp_path / layout.STACKS).write_text("".join(json.dumps(row) + "\n" for row in ROWS[:5]))
    stacks = stacks_of(build_timeline(process))
    assert stacks is not None
    assert stacks.operations == [operation]


def test_a_main_thread_without_events_is_in_nothing(tmp_path: Path) -> None:
    """It began the recording, and another thread's shard is the first that is there."""
    process = streams.process(
        [],
        [(0, streams.begin(streams.INFERENCE)), (90, streams.end(streams.INFERENCE))],
    )
    process.directory, process.threads = tmp_path, process.threads[1:]
    process.start["in_main_thread"] = True
    (tmp_path / layout.STACKS).write_text("".join(json.dumps(row) + "\n" for row in ROWS[:5]))
    stacks = stacks_of(build_timeline(process))
    assert stacks is not None
    assert stacks.operations == ["other"]


def learn(seconds: float) -> None:
    with profile.operation("learning"):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            busy(1_000)


def record_and_learn(directory: Path) -> None:
    with profile.session(directory, mode="full"):
        learn(0.3)


def work_beside(worker: threading.Thread) -> None:
    worker.start()
    while worker.is_alive():
        busy(1_000)


@pytest.mark.parametrize("begun", ["by the main thread", "by another"])
def test_the_main_thread_is_not_in_what_another_does(begun: str, tmp_path: Path) -> None:
    """It enters no operation itself, while another one learns."""
    directory = tmp_path / "s"
    if begun == "by another":
        work_beside(threading.Thread(target=record_and_learn, args=(directory,)))
    else:
        with profile.session(directory, mode="full"):
            work_beside(threading.Thread(target=learn, args=(0.3,)))
    summary = summarize(directory)
    assert "learning" in {cell.operation for cell in summary.cells}
    assert summary.python_functions
    assert {row.operation for row in summary.python_functions} == {"other"}


def test_the_main_thread_says_which_shard_is_its_own(tmp_path: Path) -> None:
    with profile.session(tmp_path / "s", mode="light"):
        learn(0.01)
    (process,) = open_session(tmp_path / "s").processes
    assert process.start["in_main_thread"] is True
    assert process.said_main_shard == process.main_shard == process.threads[0].index
    assert not process.problems
