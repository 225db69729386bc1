"""A recorder with an injected clock."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redline.profile import _native
from redline.profile.analyse.cells import compute_cells
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import open_session
from redline.profile.record.files import create_session
from redline.profile.record.options import Options
from redline.profile.record.recorder import environment

MARKS = 1
BASE_NS = 1_000


class FakeRecorder:
    """A recording whose clock moves only when told: `tick(7)` passes 7 ns."""

    def __init__(self, directory: Path, **settings: int) -> None:
        self.directory, self.now_ns = directory, BASE_NS
        _native.set_clock(self.now_ns)
        _native.start(str(directory), **settings)
        _native.set_active(MARKS)

    def tick(self, ns: int) -> None:
        """Let time pass."""
        self.now_ns += ns
        _native.set_clock(self.now_ns)

    def stop(self) -> dict[str, int]:
        """End the recording; the statistics."""
        return _native.stop()

    def events(self, thread: int = 0) -> list[tuple]:
        """What the shard of this thread holds, without the opening of the window."""
        from tests.profile.shards import WINDOW_ON, read_events

        path = self.directory / f"thread-{thread:05d}.arrow"
        return [e for e in read_events(path, _native.names()) if e[1:] != (WINDOW_ON,)]


@pytest.fixture(autouse=True)
def unscheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the system's scheduler out: most tests know times by the wall clock.

    On a busy machine their programs' times are partly `ready`. Tests of that undo this with the
    fixture `with_scheduler`.
    """
    from redline.profile.analyse import timeline

    monkeypatch.setattr(timeline, "read_ticks", lambda process: {})


@pytest.fixture
def with_scheduler(monkeypatch: pytest.MonkeyPatch, unscheduled: None) -> None:
    """Take what the scheduler did into account, as reports do."""
    from redline.profile.analyse import scheduling, timeline

    monkeypatch.setattr(timeline, "read_ticks", scheduling.read_ticks)


@pytest.fixture
def fake_recorder(tmp_path: Path) -> Iterator[Callable[..., FakeRecorder]]:
    yield lambda **settings: FakeRecorder(tmp_path, **settings)
    _native.stop()
    _native.set_clock(None)


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with native modules that pass for the ML back end and a simulator.

    `torch.spin(ns)` and `mujoco.spin(ns)` take that long; `.call(f)` calls back into Python.
    """
    directory = tmp_path_factory.mktemp("stubs")
    source = Path(__file__).with_name("stub.c")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    include = sysconfig.get_paths()["include"]
    for name in ("torch", "mujoco"):
        output = str(directory / f"{name}{suffix}")
        command = [*compiler, "-shared", "-fPIC", "-O1", f"-I{include}", f"-DNAME={name}"]
        subprocess.run([*command, str(source), "-o", output], check=True)
    return directory


class Profiled:
    """Runs programs under the profiler in processes of their own."""

    def __init__(self, directory: Path, stubs: Path) -> None:
        self.directory, self.session, self._stubs = directory, directory, stubs
        self._runs = 0

    def run(
        self, text: str, *, check: bool = True, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run this source under the profiler, with the stub modules importable."""
        settings = Options(**options)
        self._runs += 1
        self.session = self.directory / f"session-{self._runs}"
        script = self.directory / "program.py"
        script.write_text(textwrap.dedent(text))
        lock = create_session(
            self.session, mode=settings.mode, command=[str(script)], watch=settings.watch
        )
        added = environment(self.session, settings)
        # Before a MuJoCo that PYTHONPATH may have.
        added["PYTHONPATH"] = str(self._stubs) + os.pathsep + added["PYTHONPATH"]
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **added, **(env or {})},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        lock.release()
        if check:
            assert done.returncode == 0, done.stderr
            assert done.stderr == ""
        return done

    def cells(self) -> dict[str, dict[Any, int]]:
        """{process name: {(phase, operation, level, GPU busy): ns}}, all summing to the end."""
        return {
            process.name: compute_cells(build_timeline(process)).time_ns
            for process in open_session(self.session).processes
        }


@pytest.fixture
def profiled(tmp_path: Path, stubs: Path) -> Profiled:
    return Profiled(tmp_path, stubs)
