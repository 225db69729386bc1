"""Programs that do what programs seldom do: recorded right, and not changed by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from redline import profile
from redline.errors import ConfigError, ProfilerConflictError
from redline.profile.analyse.decoded import decode
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.commands import main
from redline.profile.reader import open_session
from redline.profile.record.options import Options
from redline.profile.report.text import render_text


def seconds(summary: Summary, **wanted: Any) -> float:
    return sum(
        cell.raw_s
        for cell in summary.cells
        if all(getattr(cell, key) == value for key, value in wanted.items())
    )


def test_marks_deeper_than_the_stack_end_where_they_end(profiled: Any) -> None:
    """A recursion of 2,600 marks, of two names in turn: after it there is no mark, before its end
    there is one; and a timed function that comes afterwards ends, too."""
    profiled.run(
        """
import sys, time, mujoco
from redline import profile
sys.setrecursionlimit(10_000)
def descend(depth):
    with profile.operation("even" if depth % 2 == 0 else "odd"):
        if depth:
            descend(depth - 1)
        if depth == 2500:
            mujoco.spin(20_000_000)
descend(2600)
mujoco.spin(30_000_000)
import statistics
for _ in range(3):
    statistics.fmean([1])
mujoco.spin(40_000_000)
until = time.perf_counter() + 0.6
while time.perf_counter() < until:
    sum(range(50))
""",
        watch=("statistics:fmean",),
        calibrate=False,
    )
    summary = summarize(profiled.session)
    marked = seconds(summary, level="simulator", operation="even")
    assert 0.02 <= marked < 0.02 + 0.5
    assert seconds(summary, level="simulator", operation="odd") < 0.01
    # A busy machine may stretch what was spun; left open, it would hold the last 0.6 s as well.
    assert 0.07 <= seconds(summary, level="simulator", operation="other") < 0.07 + 0.5
    assert summary.dropped_events > 0
    assert summary.too_deep_events == summary.dropped_events
    assert "nested deeper than 2,048" in render_text(summary)


def test_what_a_module_computes_within_its_import_is_seen(profiled: Any) -> None:
    """The probe rests while modules are imported. No end wakes it here: the writer does, so that of
    800 ms in the simulator all but a rest's 65 ms and a writer's turn are observed.

    Elsewhere a training run within an import was not seen until its end, and stood there as Python.
    """
    for name in "abcd":
        (profiled.directory / f"part_{name}.py").write_text("for _ in range(200_000): pass\n")
    (profiled.directory / "training.py").write_text(
        """
import part_a, part_b, part_c, part_d
import mujoco
for _ in range(80):
    mujoco.spin(10_000_000)
"""
    )
    profiled.run("import training")
    summary = summarize(profiled.session)
    seen = {call.function: call.total_s for call in summary.functions}
    assert seen["mujoco.spin"] > 0.5


def test_900_nested_marks_drop_nothing(profiled: Any) -> None:
    profiled.run(
        """
import sys
from redline import profile
sys.setrecursionlimit(10_000)
def descend(depth):
    with profile.operation("mark"):
        return descend(depth - 1) if depth > 1 else None
descend(900)
""",
        calibrate=False,
    )
    summary = summarize(profiled.session)
    assert summary.dropped_events == 0
    process = open_session(profiled.session).processes[0]
    number = next(name.id for name in process.names.values() if name.name == "mark")
    counts = decode(process, process.threads[0]).counts
    assert counts[number] == 900


def test_a_program_that_replaces_itself_is_two(profiled: Any) -> None:
    """All of the first one's events are there, and no table mixes the two."""
    done = profiled.run(
        """
import os, sys, mujoco
try:
    os.execvp("/no/such/program", ["it"])
except OSError:
    pass
mujoco.spin(30_000_000)
print("first", flush=True)
second = "import mujoco; mujoco.spin(500_000_000); print('second')"
os.execv(sys.executable, [sys.executable, "-c", second])
"""
    )
    assert done.stdout == "first\nsecond\n"
    summary = summarize(profiled.session)
    first, second = summary.processes
    assert (first.name, second.name) == ("program.py", "python -c")
    assert first.ended
    assert second.ended
    assert first.pid != second.pid
    assert 0.03 <= seconds(summary, level="simulator", pid=first.pid) < 0.5
    assert seconds(summary, level="simulator", pid=second.pid) >= 0.5
    assert any("replaced itself" in problem for problem in second.problems)


def test_a_program_that_closes_all_files_keeps_its_own(profiled: Any, tmp_path: Path) -> None:
    """As daemons do: what it opens next gets the numbers of the recorder's files."""
    profiled.run(
        f"""
import os, time, mujoco
from redline import profile
mujoco.spin(20_000_000)
time.sleep(0.6)
os.closerange(3, 256)
mine = [open({str(tmp_path)!r} + f"/mine-{{i}}", "w") for i in range(12)]
for i in range(100):
    profile.operation(f"new name {{i}}")
mujoco.spin(30_000_000)
time.sleep(0.6)
for file in mine:
    file.write("mine")
    file.close()
"""
    )
    for number in range(12):
        assert (tmp_path / f"mine-{number}").read_bytes() == b"mine"
    (process,) = open_session(profiled.session).processes
    assert process.end is not None
    assert len(process.names) > 100
    assert seconds(summarize(profiled.session), level="simulator") >= 0.05


def test_a_program_of_many_threads_is_analyzed(profiled: Any) -> None:
    """A hundred at once, each of which gets a part of the memory; then one after the other."""
    profiled.run(
        """
import threading, time, mujoco
from concurrent.futures import ThreadPoolExecutor
together = threading.Barrier(100)
def work(_):
    together.wait()
    mujoco.spin(10_000)
with ThreadPoolExecutor(100) as pool:
    list(pool.map(work, range(100)))
for i in range(500):
    thread = threading.Thread(target=mujoco.spin, args=(10_000,))
    thread.start()
    thread.join()
    if i % 50 == 0:
        time.sleep(0.1)
""",
        calibrate=False,
    )
    (process,) = open_session(profiled.session).processes
    assert len(process.threads) > 500
    summary = summarize(profiled.session)
    (row,) = [r for r in summary.functions if r.function == "mujoco.spin"]
    assert (row.calls, summary.dropped_events) == (600, 0)


def test_a_phase_for_every_iteration(profiled: Any) -> None:
    """Thousands of phases times operations times levels are more than one table should hold."""
    profiled.run(
        """
from redline import profile
for i in range(4000):
    with profile.phase(f"iteration {i}"), profile.operation(f"operation {i}"):
        pass
""",
        mode="light",
    )
    summary = summarize(profiled.session)
    phases = {cell.phase for cell in summary.cells if cell.operation.startswith("operation")}
    assert len(phases) == 4000
    assert sum(cell.raw_s for cell in summary.cells) == pytest.approx(summary.processes[0].wall_s)


def test_metadata_of_any_kind_harms_nobody(profiled: Any, tmp_path: Path) -> None:
    done = profiled.run(
        """
from redline import profile
class Odd:
    def __repr__(self):
        raise RuntimeError("no")
loop = []
loop.append(loop)
profile.metadata(table={(1, 2): 3}, loop=loop, odd=Odd(), plain=7, none=float("nan"),
                 much=float("inf"), name="\\ud800")
print("ran")
"""
    )
    assert done.stdout == "ran\n"
    summary = summarize(profiled.session)
    found = summary.to_json()["processes"][0]["metadata"]
    assert (found["plain"], found["table"], found["odd"]) == (7, "{(1, 2): 3}", "<Odd>")
    assert (found["none"], found["much"]) == (None, "inf")
    json.dumps(summary.to_json(), allow_nan=False)


def test_a_window_of_steps_counts_from_its_begin(profiled: Any) -> None:
    """0.3 s and then two steps; of the two delays the later counts."""
    program = """
import time, mujoco
from redline import profile
for _ in range(10):
    time.sleep(0.1)
    mujoco.spin(2_000_000)
    profile.step()
"""
    profiled.run(program, delay_s=0.3, for_steps=2)
    (row,) = [r for r in summarize(profiled.session).functions if r.function == "mujoco.spin"]
    assert 1 <= row.calls <= 3
    profiled.run(program, delay_s=0.1, delay_steps=7)
    (row,) = [r for r in summarize(profiled.session).functions if r.function == "mujoco.spin"]
    assert row.calls == 3


def test_cpu_time_is_that_of_the_recording(tmp_path: Path) -> None:
    """What a process used before a session in code began is not the session's."""
    code = f"""
import time
from redline import profile
while time.process_time() < 0.8:
    pass
with profile.session({str(tmp_path / "s")!r}, calibrate=False):
    pass
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert summarize(tmp_path / "s").processes[0].cpu_s < 0.5


def test_a_watched_module_can_be_run(profiled: Any, tmp_path: Path) -> None:
    """`python -m` asks the loader for more than an import does."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("def f(): pass\nprint(__name__)\n")
    profiled.run(
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "runpy.run_module('package.train', run_name='__main__')\n",
        watch=("package.train:f",),
    )


def test_what_cannot_be_watched_is_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="names no function"):
        Options(watch=("mujoco",))
    out = tmp_path / "s"
    assert main(["profile", "--out", str(out), "--watch", "x", "--", "true"]) == 2
    assert not out.exists()
    assert "names no function" in capsys.readouterr().err


def test_a_mistyped_command_leaves_the_directory_free(tmp_path: Path) -> None:
    out = str(tmp_path / "s")
    assert main(["profile", "--out", out, "--", "no-such-program"]) == 2
    assert main(["profile", "--out", out, "--", sys.executable, "-c", "pass"]) == 0


def test_a_refused_session_leaves_the_directory_free(tmp_path: Path) -> None:
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(ProfilerConflictError):
            profile.session(tmp_path / "s").__enter__()
    finally:
        sys.settrace(None)
    assert list((tmp_path / "s").iterdir()) == []
    with profile.session(tmp_path / "s", calibrate=False):
        pass
    assert len(open_session(tmp_path / "s").processes) == 1


def test_another_environment_gets_redline_only(tmp_path: Path, profiled: Any) -> None:
    """What is installed beside Redline must not become importable in the profiled program."""
    import venv

    from redline.profile.record.recorder import environment

    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    profiled.run("pass")
    added = environment(profiled.session, Options())
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    added["PYTHONPATH"] = added["PYTHONPATH"].split(os.pathsep)[0]
    code = (
        "import os, sys\nfrom redline import profile\n"
        "print(os.environ['REDLINE_PROFILE_PACKAGE'] in sys.path)"
    )
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", code],
        env={**inherited, **added},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert len(open_session(profiled.session).processes) == 2


def test_wrapped_functions_equal_what_they_wrap() -> None:
    from redline.profile import _native

    number = _native.intern("call", "append", 1, "builtins")
    wrapper = _native.Wrapper(list.append, number, level=1)
    assert wrapper == list.append
    assert {wrapper: 1}[list.append] == {list.append: 1}[wrapper] == 1
    assert wrapper != list.pop
    assert wrapper == _native.Wrapper(list.append, number, level=1)


def test_wrapped_functions_are_pickled_by_their_names(profiled: Any) -> None:
    """A watched function and a method of an own env; and what no name leads to as before."""
    (profiled.directory / "mysim.py").write_text(
        """
def run(x):
    return 2 * x

class Corridor:
    def reset(self):
        return 0
    def step(self, action):
        return action, 1.0, False, {}
"""
    )
    profiled.run(
        """
import pickle
import mysim
from redline.profile import _native

step = mysim.Corridor.step
assert pickle.loads(pickle.dumps(step)) is step  # not called yet, so not known as an env's
mysim.Corridor().step(0)
assert type(mysim.run) is type(vars(mysim.Corridor)["step"]) is _native.Wrapper
assert pickle.loads(pickle.dumps(mysim.run)) is mysim.run
assert pickle.loads(pickle.dumps(mysim.Corridor.step)) is mysim.Corridor.step
assert pickle.loads(pickle.dumps(mysim.Corridor().step))(3) == (3, 1.0, False, {})

from importlib.util import find_spec
if find_spec("cloudpickle") is not None:
    import cloudpickle
    cloudpickle.register_pickle_by_value(mysim)
    sent = cloudpickle.loads(cloudpickle.dumps(mysim.run))
    assert sent is not mysim.run and sent(4) == 8

again = _native.Wrapper(len, _native.intern("call", "len", 1, "builtins"))
assert pickle.loads(pickle.dumps(again)) is len
""",
        watch=("mysim:run",),
        calibrate=False,
    )


def test_an_interrupt_that_hits_a_hook_reaches_the_program(fake_recorder: Any) -> None:
    from redline.profile import _native, marks

    recorder = fake_recorder()

    def hook(now_ns: int) -> int:
        raise KeyboardInterrupt

    _native.set_block_hook(hook, 0)

    def program() -> None:
        with marks.operation("interrupted"):
            pass
        for _ in range(1000):
            sum([1, 2])

    with pytest.raises(KeyboardInterrupt):
        program()
    _native.set_block_hook(None, 0)
    recorder.stop()


def test_the_main_thread_comes_first_where_the_window_opens_late(profiled: Any) -> None:
    """A thread of the profiler's opens it, was the first one, and led: all was `other`."""
    profiled.run(
        """
import time
from redline import profile

def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))

for _ in range(60):
    with profile.operation("work"):
        work(0.02)
""",
        delay_s=0.3,
    )
    functions = summarize(profiled.session).python_functions
    by_operation = {row.operation: row.total_s for row in functions if row.function == "work"}
    assert max(by_operation, key=lambda name: by_operation[name]) == "work"


BARE_ALE = """
import ale_py
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
ale = ale_py.ALEInterface()
ale.loadROM(ale_py.roms.get_rom_path("pong"))
ale.reset_game()
for _ in range(200):
    ale.act(ale_py.Action.NOOP)
"""


@pytest.mark.skipif(find_spec("ale_py") is None, reason="ale_py is not installed")
@pytest.mark.usefixtures("with_scheduler")
def test_a_bare_ale_is_simulation(tmp_path: Path) -> None:
    from tests.profile.conftest import Profiled

    profiled = Profiled(tmp_path, tmp_path)
    for _ in range(4):
        profiled.run(BARE_ALE, calibrate=False)
        work_s, beside_s = in_bare_ale(summarize(profiled.session))
        if beside_s < 0.1 * work_s:  # 200 times some 0.4 us, of some 60 us
            return
    raise AssertionError((work_s, beside_s))


def in_bare_ale(summary: Summary) -> tuple[float, float]:
    """Seconds at work in the simulator: within its operation, and beside it.

    A call holds its operation, and a moment before and after it. On a busy machine the thread may
    lose its core in such a moment, for longer than all else takes. The scheduler tells of that, but
    seldom of each microsecond: hence the tries.
    """
    calls = {r.function: r for r in summary.functions if ".ALEInterface." in r.function}
    of_ale = {name.rpartition(".")[2]: row.calls for name, row in calls.items()}
    assert of_ale == {"act": 200, "reset_game": 1}
    inside = seconds(summary, operation="simulation")
    assert inside <= sum(row.total_s for row in calls.values())
    work, beside = (
        seconds(summary, operation=name, level="simulator") for name in ("simulation", "other")
    )
    assert 0 < work <= inside
    return work, beside
