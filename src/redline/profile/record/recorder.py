"""Record this process into a session, and let its children join."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from redline.errors import ProfileError
from redline.profile import layout, marks
from redline.profile.record.companions import Companions
from redline.profile.record.early_exit import EarlyExit
from redline.profile.record.exits import Exits
from redline.profile.record.files import ProcessFiles, create_session, in_main_thread
from redline.profile.record.imports import PostImport
from redline.profile.record.options import Options
from redline.profile.record.said import Said
from redline.profile.record.window import Window

if TYPE_CHECKING:
    from redline.profile.record.boundary import Boundary
    from redline.profile.record.calibrate import Calibrator
    from redline.profile.record.counters import Counters
    from redline.profile.record.machine import HelperProcess

MARKS, CALLS = 1, 2

__all__ = ["Recorder", "current", "join", "session"]

_current: Recorder | None = None
# Held by whoever begins or ends a recording or a window, and around a fork: another thread may do
# the one while this one does the other, and a child of it would have half of it for ever.
_turn = threading.RLock()


def _extension() -> ModuleType:
    try:
        from redline.profile import _native
    except ImportError as error:
        raise ProfileError(
            "the C extension redline.profile._native was not built for "
            f"{sys.implementation.cache_tag}, and nothing can be recorded without it. Install a C "
            "compiler and run `pip install --force-reinstall redline` (or `pip install -e .` in a "
            "checkout)"
        ) from error
    return _native


class Recorder:
    """The recording of one process.

    Args:
        directory: of a session that exists.
        options: what to record.
    """

    def __init__(self, directory: Path, options: Options) -> None:
        self.directory, self.options = directory.resolve(), options
        self._native = _extension()
        self._hooks = PostImport()
        self._files: ProcessFiles | None = None
        self._boundary: Boundary | None = None
        self._companions = Companions(options)
        self._calibrator: Calibrator | None = None
        self._patches: Any = None
        self._generators: Any = None
        self._pid = 0
        self._base_ns = 0
        self._own_ns = 0  # CPU time of the writer in the windows that are over
        self._own_before_ns: int | None = None  # at the begin of the open one
        self._knows_main = False  # which shard is the main thread's
        self._exits = Exits(self.stop)
        self._said = Said(self._note, self._native.now)
        self._window: Window | None = None
        self._counters: Counters | None = None
        self._early_exit: EarlyExit | None = None

    def start(self) -> None:
        """Begin to record, or to wait for the window.

        Raises:
            ProfilerConflictError: if another profiler or a debugger holds the hook.
            SessionError: if the session cannot be written.
        """
        from redline.profile.record.generators import Generators
        from redline.profile.record.operations import Patches

        if self.options.mode == "full":
            from redline.profile.record.boundary import Boundary

            self._boundary = Boundary()
        if self.options.counters:
            from redline.profile.record.counters import Counters

            self._counters = Counters()
        early_exit = EarlyExit() if self.options.exit_after_window else None
        try:
            self._open_files()
            if self._boundary is not None:
                self._boundary.attach()
                self._boundary.pause()
            self._open_companions()
        except BaseException:  # nothing may go on recording without anybody to end it
            self._companions.stop()
            if self._boundary is not None:
                self._boundary.detach()
            if self._counters is not None:
                self._counters.stop()
            self._native.stop()
            self._close_files()
            if early_exit is not None:
                early_exit.undo()
            raise
        self._early_exit = early_exit
        self._patches = Patches(self._hooks)
        self._hooks.install()
        self._patches.operations()
        if self._boundary is not None:
            self._patches.native_functions()
        self._patches.watch(self.options.watch)
        self._generators = Generators()
        if reason := self._generators.attach():
            self._note("generators", absent=reason)
        self._hooks.add("multiprocessing.process", self._name_workers)
        self._exits.install()
        marks.listen(self._said)
        self._open_window()

    def stop(self) -> dict[str, int]:
        """End the recording.

        Returns:
            `events` and `bytes` written, events `dropped`, and `write_errno` (0 when fine).
        """
        with _turn:
            return self._stop(self._files) if self._files is not None else {}

    def _stop(self, files: ProcessFiles) -> dict[str, int]:
        self._exits.remove()
        self._close_windows()
        companions_ns = 0
        for name, statistics in self._companions.stop().items():
            self._note(name, **statistics)
            companions_ns += int(statistics.get("cpu_ns", 0)) + int(statistics.get("answers_ns", 0))
        marks.listen(None)
        self._said.end_window()
        self._end_calibration()
        self._native.set_step_hook(None)
        self._native.set_block_hook(None, 0)
        self._note_main_thread()
        self._native.set_active(0)
        if self._boundary is not None:
            self._boundary.detach()
        self._note_counters()
        if self._counters is not None:
            self._counters.stop()
        self._generators.detach()
        self._patches.undo()
        self._hooks.remove()
        statistics = self._native.stop()
        self._add_own(statistics)
        self._end_note(statistics, companions_ns)
        self._close_files()
        files.seal()
        return statistics

    def pause_writer(self) -> None:
        """Before a fork: no thread of ours may exist then."""
        self._companions.before_fork()
        self._native.pause_writer()

    def resume_writer(self) -> None:
        """After it, in the parent."""
        self._native.resume_writer()
        self._companions.after_fork_in_parent()

    def after_fork(self, *, goes_on: bool) -> None:
        """In a forked child: leave the parent's files and record into new ones.

        Args:
            goes_on: it is not about to become another program, which will join by itself.
        """
        if self._files is None:
            return
        self._native.abandon()
        self._close_files()
        self._exits.forked()
        self._close_windows()
        self._said = Said(self._note, self._native.now)
        marks.listen(self._said)
        if not goes_on:
            return
        try:
            self._open_files()
            self._companions.after_fork_in_child(self._files.directory, self._base_ns)
        except (ProfileError, OSError) as error:
            sys.stderr.write(f"redline.profile: this process is not profiled: {error}\n")
            return
        self._open_window()

    # ------------------------------------------------------------------ files

    def _open_files(self) -> None:
        self._pid = os.getpid()
        self._own_ns, self._own_before_ns = 0, None
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._files = ProcessFiles(self.directory, stamp)
        self._knows_main = False
        for row in self._native.names():
            self._files.name(row)
        self._native.set_name_hook(self._files.name)
        self._base_ns = self._native.start(
            str(self._files.directory), budget_bytes=int(self.options.memory_mb * 2**20)
        )
        self._files.start(self._base_ns, self.options.mode)
        if marks.known_metadata():
            self._note("metadata", values=marks.known_metadata())
        if (name := marks.known_name()) is not None:
            self._note("name", name=name)

    def _open_companions(self) -> None:
        if self._files is not None:
            self._companions.open(self._files.directory, self._base_ns)

    def _close_files(self) -> None:
        self._native.set_name_hook(None)
        if self._files is not None:
            self._files.close()
            self._files = None

    def _add_own(self, statistics: dict[str, int]) -> None:
        """A window is over: the writer works outside of them, too."""
        if self._own_before_ns is not None:
            self._own_ns += statistics["writer_cpu_ns"] - self._own_before_ns
        self._own_before_ns = None

    def _end_note(self, statistics: dict[str, int], companions_ns: int) -> None:
        if self._files is not None:
            from redline.profile.record.files import process_name

            self._files.note(
                "end",
                name=process_name(),
                time_ns=self._native.now(),
                cpu_s=time.process_time(),
                own_cpu_ns=companions_ns + statistics["writer_cpu_ns"],
                recorded_own_cpu_ns=companions_ns + self._own_ns,
                lines_lost=self._files.lines_lost(),
                **statistics,
            )

    def _note(self, event: str, **values: Any) -> None:
        if self._files is not None:
            self._files.note(event, **values)

    def _name_workers(self, module: ModuleType) -> None:
        """A worker's name is known once multiprocessing has prepared it."""
        process = module.BaseProcess
        bootstrap = process._bootstrap

        def named(worker: Any, *args: Any, **kwargs: Any) -> Any:
            if self._files is not None and os.getpid() == self._pid:
                self._files.note("name", name=worker.name)
            return bootstrap(worker, *args, **kwargs)

        process._bootstrap = named
        self._patches.on_undo(lambda: setattr(process, "_bootstrap", bootstrap))

    # ------------------------------------------------------------------ the window

    def _open_window(self) -> None:
        over = self._early_exit.exit if self._early_exit is not None else _go_on
        self._window = Window(self.options, self._begin_window, self._end_window, over, lock=_turn)
        self._window.open(self._native.set_step_hook)

    def _close_windows(self) -> None:
        """No more of them, and no end of the program; in a forked child of those of its parent."""
        if self._window is not None and os.getpid() == self._pid:
            self._window.close()
        self._window = None
        if self._early_exit is not None:
            self._early_exit.undo()
            self._early_exit = None

    def _begin_window(self) -> None:
        from redline.profile.record.calibrate import SCHEDULE, Calibrator, Limit

        if self._files is None:
            return
        self._own_before_ns = self._native.statistics()["writer_cpu_ns"]
        if self._boundary is not None:
            self._native.set_active(MARKS | CALLS)
            self._boundary.resume()
            if self.options.calibrate:
                most = self.options.max_events_per_s
                limit = Limit(
                    most,
                    lambda: int(self._native.statistics()["events"]),
                    lambda: self._note("limit", events_per_s=most),
                )
                self._calibrator = Calibrator(self._switch, SCHEDULE, limit)
                self._calibrator.start(self._native.now())
        else:
            self._native.set_active(MARKS)
        self._native.thread_index()
        self._note_main_thread()
        self._said.begin_window()
        self._companions.begin()

    def _end_calibration(self) -> None:
        """Let what is blocked now be told from what computes, by the CPU time that it used."""
        calibrator, self._calibrator = self._calibrator, None
        if calibrator is not None and os.getpid() == self._pid and self._native.get_active():
            calibrator.finish()

    def _switch(self, on: bool) -> None:
        if self._boundary is not None:
            (self._boundary.resume if on else self._boundary.pause)()

    def _end_window(self) -> None:
        if self._files is None:
            return
        self._companions.end()
        self._said.end_window()
        self._end_calibration()
        self._native.set_block_hook(None, 0)
        if self._boundary is not None:
            self._boundary.pause()
        self._note_main_thread()
        self._native.set_active(0)
        self._add_own(self._native.statistics())
        self._note_counters()

    def _note_main_thread(self) -> None:
        """Say which shard is the main thread's, whose stacks are seen; known to itself alone."""
        if self._knows_main or not in_main_thread():
            return
        shard = self._native.thread_index()
        if shard is not None:
            self._knows_main = True
            self._note("main_thread", shard=shard)

    def _note_counters(self) -> None:
        """All that was counted so far: the last of these lines is read."""
        if self._counters is not None:
            self._note("counters", **self._counters.counted())


# ---------------------------------------------------------------------- this process


def _go_on() -> None:
    """After the last window, where the program does not end with it."""


def current() -> Recorder | None:
    """The recorder of this process, if it records."""
    return _current


def _start(recorder: Recorder) -> None:
    global _current
    with _turn:
        if _current is not None:
            raise ProfileError(
                f"this process already records into {_current.directory}. End that session first"
            )
        recorder.start()
        _current = recorder


def _stop() -> dict[str, int]:
    global _current
    with _turn:
        recorder, _current = _current, None
        return recorder.stop() if recorder is not None else {}


def _before_fork() -> None:
    if _current is not None:
        _current.pause_writer()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.resume_writer()


def _after_fork_in_child() -> None:
    if _current is not None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        _current.after_fork(goes_on=not _is_in_popen(frame))


def _is_in_popen(frame: FrameType) -> bool:
    """Whether `subprocess` forks: in C, and calls `preexec_fn` before the new program."""
    code = frame.f_code
    return code.co_name == "_execute_child" and frame.f_globals.get("__name__") == "subprocess"


# The lock is taken before all of this and given back after it. Not by functions of Python: where a
# signal's handler raises as one begins it does nothing, and nobody would give the lock back.
# In a child, threads that wait for it are not there.
os.register_at_fork(after_in_child=getattr(_turn, "_at_fork_reinit"))  # noqa: B009
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release)


def join(directory: Path, options: Options) -> None:
    """Record this process into an existing session until it ends."""
    if options.exit_after_window:  # of those that it starts, none ends for this
        os.environ[layout.ENVIRONMENT] = _named(
            directory, replace(options, exit_after_window=False)
        )
    _start(Recorder(directory, options))
    atexit.register(_stop)


def _named(directory: Path, options: Options) -> str:
    """A session and how to record into it, as one text."""
    return f"{directory.resolve()}\n{options.to_json()}"


def environment(directory: Path, options: Options) -> dict[str, str]:
    """What to add to the environment so that a Python process, and its children, join."""
    here = Path(__file__).parent
    package = here.parents[1]
    bootstrap = here / "bootstrap"
    path = os.environ.get("PYTHONPATH")
    return {
        layout.ENVIRONMENT: _named(directory, options),
        layout.PACKAGE_PATH: str(package.parent),
        "PYTHONPATH": str(bootstrap) + (os.pathsep + path if path else ""),
    }


def _beside(directory: Path) -> HelperProcess:
    with _turn:  # a child forked meanwhile could never import it, and would keep its pipe open
        from redline.profile.record.machine import HelperProcess

        try:
            return HelperProcess(directory)
        except OSError as error:
            raise ProfileError(
                f"cannot start {sys.executable!r}, which reads the machine beside the program: "
                f"{error}. Record with `redline profile --out DIR -- COMMAND` instead"
            ) from error


@contextmanager
def session(directory: str | Path, **options: Any) -> Generator[Recorder]:
    """Record this block, and the processes started in it, into a new session.

    Args:
        directory: must not exist, or be empty.
        **options: see `Options`: mode, watch, for_s, ...

    Yields:
        The recorder.

    Raises:
        ConfigError: if an option is wrong.
        ProfilerConflictError: if another profiler or a debugger holds the hook.
        SessionError: if the directory is in use or cannot be written.
        ProfileError: if this process already records, the extension is missing, or no process
            can be started beside it.
    """
    settings = Options(**options)
    path = Path(directory)
    _extension()
    lock = create_session(path, mode=settings.mode, command=list(sys.argv), watch=settings.watch)
    before = dict(os.environ)
    recorder = Recorder(path, settings)
    try:
        machine = _beside(path)
    except BaseException:
        lock.discard()
        raise
    try:
        _start(recorder)
    except BaseException:
        machine.stop()
        lock.discard()
        raise
    try:
        os.environ.update(environment(path, replace(settings, exit_after_window=False)))
        try:
            yield recorder
        finally:
            for name in (layout.ENVIRONMENT, layout.PACKAGE_PATH, "PYTHONPATH"):
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)
            _stop()
    finally:
        machine.stop()
        lock.release()
