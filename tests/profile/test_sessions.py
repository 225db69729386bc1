"""Sessions of programs that end badly, in odd ways, or under somebody else's hook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline import profile
from redline.errors import ConfigError, ProfileError, ProfilerConflictError, SessionError
from redline.profile import layout
from redline.profile.analyse.summary import all_problems, summarize
from redline.profile.commands import main
from redline.profile.reader import open_session
from redline.profile.record.files import create_session
from redline.profile.record.options import Options
from redline.profile.record.recorder import environment

SPIN = "import mujoco\nmujoco.spin(30_000_000)\n"


def simulator_s(directory: Path) -> dict[str, float]:
    totals: dict[str, float] = {}
    for cell in summarize(directory).cells:
        if cell.level == "simulator":
            totals[cell.process] = totals.get(cell.process, 0.0) + cell.raw_s
    return totals


def test_a_crash_leaves_a_whole_session(profiled: Any) -> None:
    done = profiled.run(SPIN + "raise SystemError('boom')", check=False)
    assert done.returncode == 1
    assert "boom" in done.stderr
    assert simulator_s(profiled.session)["program.py"] >= 0.03
    assert open_session(profiled.session).processes[0].end is not None


def test_os_exit_leaves_a_whole_session(profiled: Any) -> None:
    done = profiled.run(SPIN + "import os\nos._exit(7)", check=False)
    assert done.returncode == 7
    assert simulator_s(profiled.session)["program.py"] >= 0.03
    assert open_session(profiled.session).processes[0].end is not None


def test_a_killed_program_leaves_a_readable_session(profiled: Any) -> None:
    """SIGKILL: what was written by then is there, and the report says how it ended."""
    done = profiled.run(
        SPIN + "import os, signal, time\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)",
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert simulator_s(profiled.session)["program.py"] >= 0.03
    process = open_session(profiled.session).processes[0]
    assert process.end is None
    assert any("did not end by itself" in problem for problem in process.problems)
    summary = summarize(profiled.session)
    assert summary.processes[0].cpu_s > 0


def test_a_shard_cut_short_is_named_and_the_rest_is_used(profiled: Any) -> None:
    profiled.run(
        """
import time, mujoco
for _ in range(5):
    mujoco.spin(10_000_000)
    time.sleep(0.25)
"""
    )
    shard = next(profiled.session.glob("processes/*/thread-00000.arrow"))
    whole = simulator_s(profiled.session)["program.py"]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 100)
    summary = summarize(profiled.session)
    assert any("thread-00000.arrow: cut short" in problem for problem in summary.problems)
    assert 0 < simulator_s(profiled.session)["program.py"] <= whole


@pytest.mark.parametrize("keep", [0, 10, 100, 200, 400])
def test_any_cut_is_survived(profiled: Any, keep: int) -> None:
    profiled.run(SPIN)
    shard = next(profiled.session.glob("processes/*/thread-00000.arrow"))
    with shard.open("r+b") as file:
        file.truncate(keep)
    assert summarize(profiled.session).processes[0].name == "program.py"


def test_torn_lines_are_named(profiled: Any) -> None:
    profiled.run(SPIN)
    names = next(profiled.session.glob("processes/*/names.jsonl"))
    names.write_text(names.read_text()[:-9])
    assert any("names.jsonl: a torn line" in p for p in summarize(profiled.session).problems)


def test_forks_and_subprocesses_join(profiled: Any) -> None:
    profiled.run(
        """
import os, subprocess, sys, mujoco
child = os.fork()
if child == 0:
    mujoco.spin(20_000_000)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-c", "import mujoco; mujoco.spin(40_000_000)"], check=True)
mujoco.spin(10_000_000)
"""
    )
    summary = summarize(profiled.session)
    by_pid: dict[int, float] = defaultdict(float)  # importing it is the simulator's, too
    for cell in summary.cells:
        if cell.level == "simulator":
            by_pid[cell.pid] += cell.raw_s
    root = summary.processes[0]
    assert [p.parent_pid for p in summary.processes[1:]] == [root.pid, root.pid]
    assert all(a >= b for a, b in zip(sorted(by_pid.values()), (0.01, 0.02, 0.04), strict=True))


def test_what_subprocess_starts_is_one_process_with_a_function_before_it(profiled: Any) -> None:
    """The child that calls `preexec_fn` becomes the program, and is none of its own."""
    done = profiled.run(
        """
import os, subprocess, sys
subprocess.run(["true"], preexec_fn=os.setsid, check=True)
code = "from redline import profile\\nprofile.step()"
subprocess.run([sys.executable, "-c", code], preexec_fn=os.setsid, check=True)
""",
        mode="light",
    )
    assert done.returncode == 0
    summary = summarize(profiled.session)
    assert [(process.name, process.steps) for process in summary.processes] == [
        ("program.py", 0),
        ("python -c", 1),
    ]
    assert summary.processes[1].parent_pid == summary.processes[0].pid
    assert not any("did not end by itself" in problem for problem in summary.problems)


def test_multiprocessing_pools_join_by_name(profiled: Any) -> None:
    profiled.run(
        """
import multiprocessing, mujoco
def work(ns):
    return mujoco.spin(ns) > 0
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(work, [20_000_000])
            pool.close()
            pool.join()
"""
    )
    workers = {n: s for n, s in simulator_s(profiled.session).items() if "PoolWorker" in n}
    assert len(workers) == 2
    assert all(seconds >= 0.02 for seconds in workers.values())


def test_windows_by_time_and_by_steps(profiled: Any) -> None:
    """Of ten steps of 5 ms the third to the sixth are recorded."""
    profiled.run(
        """
import mujoco
from redline import profile
for _ in range(10):
    mujoco.spin(5_000_000)
    profile.step()
""",
        delay_steps=2,
        for_steps=4,
    )
    summary = summarize(profiled.session)
    (row,) = [row for row in summary.functions if row.function == "mujoco.spin"]
    assert row.calls == 4
    assert summary.processes[0].wall_s < 0.9 * summary.wall_s


def test_light_mode_sees_marks_but_no_calls(profiled: Any) -> None:
    profiled.run(
        "import mujoco\nfrom redline import profile\n"
        "with profile.operation('simulation'):\n    mujoco.spin(20_000_000)\n",
        mode="light",
    )
    cells = profiled.cells()["program.py"]
    assert cells["", "simulation", "python", False] >= 20_000_000
    assert {key[2] for key in cells} == {"python"}


def test_watched_functions_are_simulator(profiled: Any) -> None:
    profiled.run(
        "import statistics, time\n"
        "from statistics import mean\n"
        "def slow():\n    time.sleep(0.02)\n    yield 1\n"
        "statistics.mean(slow())\n",
        watch=("statistics:mean",),
    )
    (row,) = [r for r in summarize(profiled.session).functions if r.function == "statistics.mean"]
    assert (row.calls, row.level) == (1, "simulator")
    assert row.total_s >= 0.02
    assert not any("--watch" in problem for problem in summarize(profiled.session).problems)


@pytest.mark.parametrize("mode", ["light", "full"])
def test_the_profilers_own_threads_are_told_apart(profiled: Any, mode: str) -> None:
    """They are part of the process's CPU time, and a small one."""
    profiled.run("import time\nend = time.time() + 0.5\nwhile time.time() < end: pass\n", mode=mode)
    (row,) = summarize(profiled.session).processes
    assert 0.0 < row.profiler_cpu_s < 0.5 * row.cpu_s


def test_watched_methods_take_what_they_took(profiled: Any, tmp_path: Path) -> None:
    """A static method got the instance, and the program ended with a TypeError."""
    (tmp_path / "kinds_of_calls.py").write_text(
        "class Twice:\n"
        "    def __call__(self, x): return 2 * x\n"
        "class Env:\n"
        "    @staticmethod\n"
        "    def static(x): return x + 1\n"
        "    @classmethod\n"
        "    def of_class(cls, x): return (cls.__name__, x)\n"
        "    def plain(self, x): return x - 1\n"
        "    called = Twice()\n"
    )
    names = ("static", "of_class", "plain", "called")
    watch = [f"kinds_of_calls:Env.{name}" for name in names]
    profiled.run(
        f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from kinds_of_calls import Env
env = Env()
found = env.static(1), env.of_class(1), env.plain(1), env.called(3), Env.static(5)
assert found == (2, ("Env", 1), 0, 6, 6), found
""",
        watch=watch,
    )


def test_a_session_ends_where_the_signal_to_end_is_ignored(tmp_path: Path) -> None:
    """Its helper process inherits that, and was waited for without end."""
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "from redline import profile\n"
        f"with profile.session({str(tmp_path / 's')!r}, mode='light'): pass\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_was_to_be_watched_and_never_came_is_told(profiled: Any) -> None:
    """`statistics` was imported, `statsitics` is a slip of the finger."""
    watch = ("statistics:mean", "statsitics:mean")
    profiled.run("import statistics\nstatistics.mean([1])\n", watch=watch)
    said = [each for each in summarize(profiled.session).problems if "--watch" in each]
    assert len(said) == 1
    assert said[0].startswith("--watch statsitics:mean: no process imported it")


def test_a_misspelled_watch_is_told_and_the_program_runs(profiled: Any) -> None:
    done = profiled.run("import mujoco\nprint('ran')\n", watch=("mujoco:spni",), check=False)
    assert done.stdout == "ran\n"
    assert "mujoco has no 'spni'" in done.stderr


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_watch_of_what_works_later_is_refused(kind: str, profiled: Any) -> None:
    """A call of it makes a generator or a coroutine, in microseconds."""
    body = "yield 1" if kind == "def" else "return 1"
    (profiled.directory / "sim.py").write_text(f"{kind} rollout():\n    {body}\n")
    program = "import sim\nsim.rollout().close()\nprint('ran')\n"
    done = profiled.run(program, watch=("sim:rollout",), check=False)
    assert done.stdout == "ran\n"
    assert "is a generator or coroutine function" in done.stderr


def test_gymnasium_like_envs_are_simulation_once_however_nested(profiled: Any) -> None:
    """Fault 37's sister: env classes of the program are seen, wrappers do not count twice."""
    core = profiled.directory / "gymnasium"
    core.mkdir()
    (core / "__init__.py").write_text("from gymnasium.core import Env\n")
    (core / "core.py").write_text(
        "class Env:\n"
        "    def step(self, action): raise NotImplementedError\n"
        "    def reset(self): raise NotImplementedError\n"
    )
    done = profiled.run(
        """
import gymnasium, mujoco, pickle
spent = []
class Inner(gymnasium.Env):
    def step(self, action):
        "Step."
        spent.append(mujoco.spin(1_000_000))
    def reset(self):
        spent.append(mujoco.spin(1_000_000))
class Outer(gymnasium.Env):
    def __init__(self, env):
        self.env = env
    def step(self, action):
        return self.env.step(action)
    def reset(self):
        return self.env.reset()
env = Outer(Inner())
env.reset()
for _ in range(9):
    env.step(0)
assert Inner.step.__doc__ == "Step." and Inner.step.__name__ == "step"
pickle.loads(pickle.dumps(env)).step(0)
mujoco.spin(5_000_000)
print(sum(spent))
""",
        calibrate=False,  # on a busy machine a block without the probe would hide the last call
    )
    cells = profiled.cells()["program.py"]
    simulation = cells["", "simulation", "simulator", False]
    assert simulation == pytest.approx(int(done.stdout), rel=0.05, abs=1e6)
    assert cells["", "other", "simulator", False] >= 5_000_000
    process = open_session(profiled.session).processes[0]
    events = process.threads[0].codes
    ids = [n.id for n in process.names.values() if n.name == "simulation"]
    assert sorted((events == 2 * number).sum() for number in ids) == [1, 10]  # reset; steps


def test_session_in_code_restores_everything(tmp_path: Path) -> None:
    before = dict(os.environ), os._exit, list(sys.meta_path)
    with profile.session(tmp_path / "s", calibrate=False), profile.operation("inference"):
        time.sleep(0.02)
    assert (dict(os.environ), os._exit, list(sys.meta_path)) == before
    assert sys.getprofile() is None
    cells = {(c.operation, c.level): c.raw_s for c in summarize(tmp_path / "s").cells}
    assert cells["inference", "waiting"] >= 0.02


def test_a_program_that_changes_its_directory_leaves_a_sealed_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with profile.session("s", mode="light"):
        os.chdir("elsewhere")
        profile.step()
    session = open_session(tmp_path / "s")
    assert session.manifest["sealed"] is True
    assert session.seal_problems == []


def test_a_program_in_a_session_has_no_child_but_its_own(tmp_path: Path) -> None:
    """It waited for whichever ended next, until there were none: for ever, in a session."""
    program = (
        "import os\n"
        "from redline import profile\n"
        f"with profile.session({str(tmp_path / 's')!r}, mode='light'):\n"
        "    for _ in range(2):\n"
        "        if os.fork() == 0:\n"
        "            os._exit(0)\n"
        "    ended = 0\n"
        "    try:\n"
        "        while True:\n"
        "            os.wait()\n"
        "            ended += 1\n"
        "    except ChildProcessError:\n"
        "        print(ended)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_where_orphans_come_to_the_program_a_session_leaves_no_zombie(tmp_path: Path) -> None:
    """As to PID 1 of a container: what reads the machine is then a child of the program."""
    program = (
        "import ctypes, os\n"
        "from redline import profile\n"
        "set_child_subreaper = 36\n"
        "assert ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0\n"
        f"with profile.session({str(tmp_path / 's')!r}, mode='light'):\n"
        "    profile.step()\n"
        "try:\n"
        "    print(os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('none')\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "none\n"


def test_where_no_process_can_be_started_the_directory_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "missing"))
        with pytest.raises(ProfileError, match=r"cannot start '.*missing', which reads"):
            profile.session(tmp_path / "s", mode="light").__enter__()
    with profile.session(tmp_path / "s", mode="light"):
        profile.step()
    assert summarize(tmp_path / "s").processes[0].steps == 1


def test_sessions_can_follow_each_other(tmp_path: Path) -> None:
    for number in range(3):
        with profile.session(tmp_path / str(number), calibrate=False), profile.operation("o"):
            time.sleep(0.01)
        cells = {(c.operation, c.level) for c in summarize(tmp_path / str(number)).cells}
        assert ("o", "waiting") in cells


def test_a_second_session_at_once_is_refused(tmp_path: Path) -> None:
    with (
        profile.session(tmp_path / "a", calibrate=False),
        pytest.raises(ProfileError, match="already records"),
        profile.session(tmp_path / "b"),
    ):
        pass


def test_a_foreign_profiler_is_named_and_left_alone(tmp_path: Path) -> None:
    def foreign(*_: object) -> None:
        return None

    if sys.version_info >= (3, 12):
        sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "cProfile's rival")
    else:
        sys.setprofile(foreign)
    try:
        with (
            pytest.raises(ProfilerConflictError, match=r"rival|foreign"),
            profile.session(tmp_path / "s"),
        ):
            pass
        with profile.session(tmp_path / "light", mode="light"):
            pass
    finally:
        if sys.version_info >= (3, 12):
            assert sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) == "cProfile's rival"
            sys.monitoring.free_tool_id(sys.monitoring.PROFILER_ID)
        else:
            assert sys.getprofile() is foreign
            sys.setprofile(None)


def test_a_debugger_is_refused(tmp_path: Path) -> None:
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(ProfilerConflictError, match="debugger"):
            profile.session(tmp_path / "s").__enter__()
    finally:
        sys.settrace(None)


def test_directories_in_use_or_used_are_refused(tmp_path: Path) -> None:
    lock = create_session(tmp_path / "s", mode="full", command=[])
    with pytest.raises(SessionError, match="in use"):
        create_session(tmp_path / "s", mode="full", command=[])
    lock.release()
    with pytest.raises(SessionError, match="already holds a session"):
        create_session(tmp_path / "s", mode="full", command=[])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(SessionError, match="not empty"):
        create_session(tmp_path / "other", mode="full", command=[])


def test_a_version_from_the_future_is_refused(tmp_path: Path) -> None:
    create_session(tmp_path / "s", mode="full", command=[]).release()
    manifest = json.loads((tmp_path / "s" / "session.json").read_text())
    manifest["version"] = layout.VERSION + 1
    (tmp_path / "s" / "session.json").write_text(json.dumps(manifest))
    with pytest.raises(SessionError, match="Upgrade Redline"):
        open_session(tmp_path / "s")
    with pytest.raises(SessionError, match=r"no session\.json"):
        open_session(tmp_path)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="'ful'"):
        Options(mode="ful")
    with pytest.raises(ConfigError, match="delay_s=-1"):
        Options(delay_s=-1)


def test_importing_the_profiler_imports_no_torch() -> None:
    """Fault: a tool whose help takes seconds because it loads the framework it measures."""
    code = (
        "import sys, redline.profile, redline.profile.commands; "
        "assert not {'torch', 'gymnasium', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_commands_end_to_end(
    tmp_path: Path, stubs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stubs), *sys.path]))
    program = "import mujoco; mujoco.spin(20_000_000); raise SystemExit(5)"
    out = str(tmp_path / "s")
    assert main(["profile", "--out", out, "--", sys.executable, "-c", program]) == 5
    capfd.readouterr()
    assert main(["report", out, "--format", "json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert {"wall_s", "processes", "cells", "overhead", "dropped_events"} <= set(data)
    assert {"name", "pid", "parent_pid", "wall_s", "cpu_s"} <= set(data["processes"][0])
    total = sum(cell["raw_s"] for cell in data["cells"])
    assert total == pytest.approx(data["processes"][0]["wall_s"])
    assert main(["report", out]) == 0
    assert "mujoco.spin" in capfd.readouterr().out
    assert main(["inspect-session", out]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["version"] == layout.VERSION
    assert main(["profile", "--out", out, "--", sys.executable, "-c", "pass"]) == 2
    assert "already holds a session" in capfd.readouterr().err
    assert main(["profile", "--out", str(tmp_path / "t"), "--"]) == 2
    assert "no command" in capfd.readouterr().err


def test_the_environment_reaches_children_of_children(profiled: Any) -> None:
    added = environment(profiled.session, Options())
    assert set(added) == {layout.ENVIRONMENT, layout.PACKAGE_PATH, "PYTHONPATH"}
    profiled.run(
        """
import subprocess, sys
inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import mujoco'])"
subprocess.run([sys.executable, "-c", inner], check=True)
"""
    )
    assert len(open_session(profiled.session).processes) == 3


def test_a_problem_of_many_processes_is_one_line() -> None:
    """Workers that are killed with their program have the same one; four are named."""
    processes = [
        SimpleNamespace(name=f"worker-{i}", pid=10 + i, problems=["it was killed"], metadata={})
        for i in range(6)
    ]
    processes.append(
        SimpleNamespace(name="learner", pid=9, problems=["a file is cut short"], metadata={})
    )
    session: Any = SimpleNamespace(
        processes=processes, problems=["its seal is missing"], manifest={}
    )
    assert all_problems(session) == [
        "its seal is missing",
        "worker-0 (pid 10), worker-1 (pid 11), worker-2 (pid 12), worker-3 (pid 13) and 2 more: "
        "it was killed",
        "learner (pid 9): a file is cut short",
    ]


def test_a_mistaken_argument_shows_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["advise", "a", "\x1b[2J", "b"], ["report", "a", "--\x1b[2J"]):
        with pytest.raises(SystemExit):
            main(words)
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert "\\x1b[2J" in said
