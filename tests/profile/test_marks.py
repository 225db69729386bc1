"""Marks, rings and shards, on an injected clock."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline import profile
from redline.profile import _native, marks
from redline.profile.reader import read_shard
from tests.profile.shards import WINDOW_OFF, read_events, read_off

Recorder = Callable[..., Any]


def test_marks_without_a_session_do_nothing() -> None:
    with profile.operation("inference"), profile.phase("warm-up"):
        profile.step()
    assert _native.get_active() == 0


def test_a_mark_is_interned_and_reentrant(fake_recorder: Recorder) -> None:
    """inference 0..10, simulation 3..7 within it, inference again within that 4..5."""
    assert profile.operation("inference") is profile.operation("inference")
    recorder = fake_recorder()
    with profile.operation("inference"):
        recorder.tick(3)
        with profile.operation("simulation"):
            recorder.tick(1)
            with profile.operation("inference"):
                recorder.tick(1)
            recorder.tick(2)
        recorder.tick(3)
    recorder.stop()
    assert recorder.events() == [
        (0, "begin", "inference"),
        (3, "begin", "simulation"),
        (4, "begin", "inference"),
        (5, "end", "inference"),
        (7, "end", "simulation"),
        (10, "end", "inference"),
    ]


def test_a_raising_body_ends_its_mark(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()

    def fail() -> None:
        recorder.tick(5)
        raise KeyError("boom")

    with pytest.raises(KeyError), profile.operation("simulation"):
        fail()
    recorder.stop()
    assert recorder.events() == [(0, "begin", "simulation"), (5, "end", "simulation")]


def test_a_mark_decorates_functions_recursively(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()

    @profile.operation("inference")
    def countdown(n: int) -> int:
        """Docs stay."""
        recorder.tick(1)
        return 0 if n == 0 else countdown(n - 1)

    assert countdown(1) == 0
    assert countdown.__doc__ == "Docs stay."
    recorder.stop()
    assert [event[:2] for event in recorder.events()] == [
        (0, "begin"),
        (1, "begin"),
        (2, "end"),
        (2, "end"),
    ]


def test_interleaved_coroutines_each_keep_their_mark(fake_recorder: Recorder) -> None:
    """a: 0..2 and b: 1..3 overlap without nesting; the end of a does not end b."""
    recorder = fake_recorder()

    async def work(name: str) -> None:
        with profile.operation(name):
            recorder.tick(1)
            await asyncio.sleep(0)
            recorder.tick(1)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    recorder.stop()
    assert [event for event in recorder.events() if event[2] in ("a", "b")] == [
        (0, "begin", "a"),
        (1, "begin", "b"),
        (3, "end", "a"),
        (4, "end", "b"),
    ]


def tallied(names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    found = _native.tallies()
    ids = {name: profile.operation(name).id for name in names}
    return {name: found.get(number, (0, 0)) for name, number in ids.items()}


def test_operations_are_tallied_from_the_first_question_on(fake_recorder: Recorder) -> None:
    """Asked within `outer` at 3: it has 2 more before `inner`'s 5, and 4 after it."""
    recorder = fake_recorder()
    outer, inner = profile.operation("outer"), profile.operation("inner")
    names = ("outer", "inner")
    with outer:
        recorder.tick(3)
        assert tallied(names) == {"outer": (0, 0), "inner": (0, 0)}
        recorder.tick(2)
        with inner:
            recorder.tick(1)
            assert tallied(names) == {"outer": (2, 0), "inner": (1, 0)}
            recorder.tick(4)
        recorder.tick(4)
    recorder.tick(7)
    assert tallied(names) == {"outer": (6, 1), "inner": (5, 1)}
    assert _native.tallies()[0] == (7, 0)  # in no operation
    with inner, inner:  # recursion: one time, two ends
        recorder.tick(8)
    assert tallied(names) == {"outer": (6, 1), "inner": (13, 3)}
    _native.set_active(0)
    recorder.tick(100)
    assert _native.tallies() == {}
    _native.set_active(1)
    recorder.tick(1)
    assert _native.tallies()[0] == (8, 0)  # the pause is nobody's


def test_interleaved_operations_are_tallied_as_they_count(fake_recorder: Recorder) -> None:
    """a 0..20, b 10..30: the later one counts until both are over."""
    recorder = fake_recorder()
    _native.tallies()
    a, b = profile.operation("tallied a"), profile.operation("tallied b")
    a.__enter__()
    recorder.tick(10)
    b.__enter__()
    recorder.tick(10)
    a.__exit__(None, None, None)
    recorder.tick(10)
    b.__exit__(None, None, None)
    assert tallied(("tallied a", "tallied b")) == {"tallied a": (10, 1), "tallied b": (20, 1)}


def test_threads_are_tallied_apart_and_sessions_begin_anew(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    _native.tallies()
    seen: list[dict] = []

    def run() -> None:
        with profile.operation("learner"):
            recorder.tick(4)
        seen.append(_native.tallies())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [{}]  # it asked for the first time
    assert tallied(("learner",)) == {"learner": (0, 0)}
    recorder.stop()
    assert _native.tallies() == {}


def test_each_thread_has_its_shard(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    recorder.tick(1)

    def run() -> None:
        with profile.operation("learner"):
            recorder.tick(4)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    recorder.stop()
    assert recorder.events(1)[:2] == [(1, "begin", "learner"), (5, "end", "learner")]


def test_many_short_threads_reuse_their_memory(fake_recorder: Recorder) -> None:
    recorder = fake_recorder(budget_bytes=64 * 4096, ring_words=512)

    def run() -> None:
        with profile.operation("learner"):
            pass

    for _ in range(200):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        _native.flush()
    assert recorder.stop()["dropped"] == 0


def test_whoever_waits_for_the_files_is_served_when_the_writer_ends(
    fake_recorder: Recorder,
) -> None:
    """A fork ends the writer for a moment, whatever other threads are waiting for."""
    recorder = fake_recorder(interval_ns=10**12)
    enough = threading.Event()

    def flush() -> None:
        while not enough.is_set():
            _native.flush()

    threads = [threading.Thread(target=flush, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        _native.pause_writer()
        _native.resume_writer()
    enough.set()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    recorder.stop()


FORKED_WHILE_A_SESSION_ENDS = """
import os, signal, sys, threading
from pathlib import Path
from redline.profile import _native

directory = Path(sys.argv[1])
for number in range(12):
    folders = [directory / f"{number}-{whose}" for whose in ("parent", "child")]
    for folder in folders:
        folder.mkdir()
    _native.start(str(folders[0]), 2**18, 64 << 20, 10**12)
    _native.set_active(1)
    mark = _native.operation("a")
    for _ in range(50_000):
        with mark:
            pass
    thread = threading.Thread(target=_native.stop)
    thread.start()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        _native.start(str(folders[1]), 2**12, 1 << 20, 10**7)
        _native.set_active(1)
        with mark:
            pass
        _native.flush()
        os._exit(_native.stop()["dropped"])
    thread.join()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, (number, status)
"""
FORKED_WHILE_SAMPLING_ENDS = """
import os, signal, sys, threading, time
from redline import profile
from redline.profile.record import recorder

sys.setswitchinterval(2e-5)
mark = profile.operation("a")

def record(name, seconds):
    session = profile.session(f"{sys.argv[1]}/{name}", mode="sample")
    session.__enter__()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with mark:
            pass
    return session

for number in range(12):
    session = record(f"{number}-parent", 0.1)
    thread = threading.Thread(target=session.__exit__, args=(None, None, None))
    thread.start()
    time.sleep(number * 0.0003)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        if recorder.current() is None:  # else it had not begun to end, and goes on here
            record(f"{number}-child", 0.02).__exit__(None, None, None)
        os._exit(0)
    thread.join()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, (number, status)
"""


FORKED_WHILE_A_THREAD_ENDS_IT = """
import os, sys, threading, time
from redline import profile
from redline.profile.record import companions, recorder

began, ended = threading.Event(), threading.Event()
stop = companions.Companions.stop

def slow(self):
    began.set()
    time.sleep(0.3)
    found = stop(self)
    ended.set()
    return found

companions.Companions.stop = slow
session = profile.session(sys.argv[1] + "/parent", mode="sample")
session.__enter__()
thread = threading.Thread(target=session.__exit__, args=(None, None, None))
thread.start()
began.wait()
child = os.fork()
if child == 0:
    os._exit(0 if ended.is_set() and recorder.current() is None else 1)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


INTERRUPTED_AT_A_FORK = """
import ctypes, functools, logging, os, signal, sys, threading

# After the hooks of logging and before those of the profiler: a call of C leaves the signal to the
# next function of Python, which it hits as that one begins.
at_a_fork = functools.partial(ctypes.CDLL(None)["raise"], signal.SIGALRM)
os.register_at_fork(after_in_parent=at_a_fork)
from redline import profile

armed = False  # True only within the block that catches it, however late the signal comes

def interrupt(number, frame):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
session = profile.session(sys.argv[1] + "/parent", mode="light")
session.__enter__()
for _ in range(50):
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    try:
        armed = True
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        armed = False
    except KeyboardInterrupt:
        armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
thread = threading.Thread(target=session.__exit__, args=(None, None, None))
thread.start()
thread.join(30)
os._exit(thread.is_alive())
"""


def test_a_signal_that_raises_at_a_fork_leaves_no_lock_behind(tmp_path: Path) -> None:
    """Python prints what a hook of a fork raises, and goes on; the session ends nevertheless."""
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED_AT_A_FORK, tmp_path]
    done = subprocess.run(command, check=True, timeout=100, stderr=subprocess.PIPE)
    assert b"_after_fork_in_parent" in done.stderr  # it was hit


@pytest.mark.parametrize(
    "program",
    [
        FORKED_WHILE_A_SESSION_ENDS,
        pytest.param(
            FORKED_WHILE_SAMPLING_ENDS,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="sampling needs Linux"),
        ),
        pytest.param(
            FORKED_WHILE_A_THREAD_ENDS_IT,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="sampling needs Linux"),
        ),
    ],
    ids=["recording", "sampling", "waiting"],
)
def test_a_process_forked_while_a_session_ends_can_record(program: str, tmp_path: Path) -> None:
    """The thread that ended it, and held the writer's locks, is not in the child."""
    command = [sys.executable, "-W", "ignore", "-c", program, tmp_path]
    subprocess.run(command, check=True, timeout=120)
    if program is FORKED_WHILE_A_SESSION_ENDS:
        shards = list(tmp_path.glob("*-child/thread-00000.arrow"))
        assert len(shards) == 12
        for shard in shards:
            events = read_events(shard, [(number, None, "a") for number in range(64)])
            assert [event[1:] for event in events if len(event) == 3] == [
                ("begin", "a"),
                ("end", "a"),
            ]


OFF_ITS_CORE = """
import sys, time
from redline.profile import _native

_native.start(sys.argv[1], 2**12, 1 << 20, 10**7)
_native.set_active(1)
_native.thread_index()
time.sleep(0.1)
with _native.operation("sleeps"):
    time.sleep(0.02)
with _native.operation("works"):
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
_native.set_active(0)
time.sleep(0.03)
_native.set_active(1)
with _native.operation("of another window"):
    pass
_native.stop()
"""


def tells_of_its_scheduler() -> bool:
    """Linux does, unless its kernel is built without it or a sandbox hides it."""
    try:
        ran_ns, ready_ns, _ = map(int, Path("/proc/self/schedstat").read_text().split())
    except (OSError, ValueError):
        return False
    return ran_ns + ready_ns > 0


@pytest.mark.skipif(
    not tells_of_its_scheduler(), reason="the system tells nothing of its scheduler"
)
def test_a_thread_tells_where_it_had_no_core(tmp_path: Path) -> None:
    """Only marks are observed: the 20 ms of sleep since the begin of their mark are such a place.
    Of the other mark, 20 ms of work, no more is told than it took beyond them."""
    subprocess.run([sys.executable, "-c", OFF_ITS_CORE, tmp_path], check=True, timeout=60)
    shard = tmp_path / "thread-00000.arrow"
    events = read_events(shard, [(number, None, "") for number in range(64)])
    times = [event[0] for event in events if event[1] in ("begin", "end")]
    first, _, second, end, _, _ = times
    off = dict(read_off(tmp_path / "scheduler.arrow"))
    assert end not in off  # the time between two windows is nobody's
    assert 15_000_000 <= off[first] <= second - first
    assert off.get(second, 0) <= end - second - 15_000_000


def test_a_full_ring_drops_whole_pairs_and_counts_them(fake_recorder: Recorder) -> None:
    """A ring of 512 words and no writer in time: what is kept is still well nested."""
    recorder = fake_recorder(ring_words=512, interval_ns=10**12)
    with profile.operation("outer"):
        for _ in range(20_000):
            with profile.operation("inner"):
                recorder.tick(1)
    statistics = recorder.stop()
    events = recorder.events()
    pairs = [event for event in events if event[1] in ("begin", "end")]
    open_names: list[str] = []
    for _, what, name in pairs:
        if what == "begin":
            open_names.append(name)
        else:
            assert open_names.pop() == name
    assert open_names == []
    assert pairs[0] == (0, "begin", "outer")
    assert pairs[-1] == (20_000, "end", "outer")
    assert statistics["dropped"] > 0
    assert statistics["dropped"] + len(pairs) == 2 + 2 * 20_000


def test_what_ended_threads_dropped_is_counted(fake_recorder: Recorder) -> None:
    """Their memory is used again by the threads that come after them."""
    recorder = fake_recorder(budget_bytes=8192, ring_words=512, interval_ns=1_000_000)

    def work() -> None:
        for _ in range(2000):
            with marks.operation("o"):
                pass

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        time.sleep(0.05)
    statistics = recorder.stop()
    begun = sum(e[1] == "begin" for i in range(1, 4) for e in recorder.events(i))
    assert 2 * begun + statistics["dropped"] >= 2 * 3 * 2000


def test_no_memory_left_drops_everything_and_says_so(fake_recorder: Recorder) -> None:
    recorder = fake_recorder(budget_bytes=0)
    with profile.operation("inference"):
        pass
    assert recorder.stop()["dropped"] == 3  # the pair, and the opening of the window


def test_long_gaps_and_long_runs_keep_exact_times(fake_recorder: Recorder) -> None:
    """An hour between two events does not fit 32 bits of nanoseconds; ten hours neither."""
    recorder = fake_recorder()
    hour = 3600 * 10**9
    with profile.operation("sleep"):
        recorder.tick(hour)
        with profile.operation("nap"):
            recorder.tick(9 * hour)
    recorder.stop()
    assert [event[0] for event in recorder.events()] == [0, hour, 10 * hour, 10 * hour]


def test_times_beyond_three_days_are_exact(fake_recorder: Recorder) -> None:
    """An event keeps 48 bits of its time. Of the others the writer knows, which looks often."""
    recorder = fake_recorder()
    half = 2**47
    with profile.operation("training"):
        for _ in range(6):
            _native.flush()
            with profile.operation("update"):
                recorder.tick(half - 1)
            recorder.tick(1)
    recorder.stop()
    begins = [half * i for i in range(6)]
    assert [e[0] for e in recorder.events() if e[1:] == ("begin", "update")] == begins
    assert recorder.events()[-1] == (6 * half, "end", "training")
    for path in recorder.directory.glob("*.arrow"):
        shard = read_shard(path)
        assert (path.name, shard.problem) == (path.name, None)


def test_marks_open_at_the_end_of_a_window_are_closed(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    with profile.operation("simulation"):
        recorder.tick(5)
        _native.set_active(0)
        recorder.tick(5)
    recorder.stop()
    assert recorder.events()[:2] == [(0, "begin", "simulation"), (5, "end", "simulation")]


def test_marks_begun_before_the_window_do_not_end_others(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    _native.set_active(0)
    with profile.operation("inference"):
        _native.set_active(1)
        recorder.tick(2)
        with profile.operation("inference"):
            recorder.tick(3)
        recorder.tick(4)
    recorder.stop()
    assert [e for e in recorder.events() if len(e) == 3] == [
        (2, "begin", "inference"),
        (5, "end", "inference"),
    ]


def test_a_window_is_in_the_phases_that_began_before_it(fake_recorder: Recorder) -> None:
    """Two windows, of 3 and 2 ns; between them one phase ends and the other goes on."""
    with profile.phase("training"):
        recorder = fake_recorder()
        recorder.tick(1)
        _native.set_active(0)
        inner = profile.phase("warm-up")
        with inner:
            recorder.tick(4)
            _native.set_active(1)
            recorder.tick(3)
            _native.set_active(0)
        recorder.tick(10)
        _native.set_active(1)
        recorder.tick(2)
    recorder.tick(5)
    recorder.stop()
    assert recorder.events() == [
        (0, "begin", "training"),
        *((1, "end", "training"), (1, WINDOW_OFF)),
        *((5, "begin", "training"), (5, "begin", "warm-up")),
        *((8, "end", "warm-up"), (8, "end", "training"), (8, WINDOW_OFF)),
        *((18, "begin", "training"), (20, "end", "training")),
    ]


def test_a_window_is_in_the_phases_of_other_threads(fake_recorder: Recorder) -> None:
    """One thread is known when the window begins, the other from its first mark on."""
    recorder = fake_recorder()
    ready, go, over = threading.Barrier(3), threading.Event(), threading.Event()

    def known() -> None:
        with profile.operation("before"):
            pass
        _native.set_active(0)
        with profile.phase("known"):
            ready.wait(20)
            over.wait(20)

    def unknown() -> None:
        while _native.get_active():
            time.sleep(0.001)
        with profile.phase("unknown"):
            ready.wait(20)
            go.wait(20)
            with profile.operation("first"):
                recorder.tick(5)

    profile.step()  # this thread has the first shard
    threads = [threading.Thread(target=known), threading.Thread(target=unknown)]
    threads[0].start()
    threads[1].start()
    ready.wait(20)
    recorder.tick(7)
    _native.set_active(1)
    recorder.tick(2)
    go.set()
    over.set()
    for thread in threads:
        thread.join(20)
    recorder.stop()
    assert (7, "begin", "known") in recorder.events(1)
    assert [event for event in recorder.events(2) if len(event) == 3] == [
        *((9, "begin", "unknown"), (9, "begin", "first")),
        *((14, "end", "first"), (14, "end", "unknown")),
    ]


def test_steps_are_instants(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    profile.step()
    recorder.tick(7)
    profile.step()
    recorder.stop()
    assert recorder.events() == [(0, 1), (7, 1)]


def test_a_shard_costs_at_most_eight_bytes_per_event(fake_recorder: Recorder) -> None:
    recorder = fake_recorder()
    mark = profile.operation("inference")
    for _ in range(50_000):
        with mark:
            recorder.tick(1)
    statistics = recorder.stop()
    assert statistics["dropped"] == 0
    assert statistics["bytes"] / 100_000 < 8


def test_names_of_marks_must_be_text() -> None:
    with pytest.raises(TypeError, match="must be a str, not int"):
        profile.operation(3)  # pyright: ignore[reportArgumentType]


def test_generators_are_refused_as_decorated() -> None:
    def rollout() -> Any:
        yield 1

    with pytest.raises(TypeError, match="generator function"):
        profile.operation("simulation")(rollout)


def test_marks_pickle_by_name() -> None:
    mark = profile.operation("inference")
    assert pickle.loads(pickle.dumps(mark)) is mark
    assert pickle.loads(pickle.dumps(profile.phase("p"))) is profile.phase("p")


def test_metadata_reaches_a_listener() -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    marks.listen(lambda event, values: heard.append((event, values)))
    try:
        profile.metadata(env="Hopper-v5")
    finally:
        marks.listen(None)
    assert heard == [("metadata", {"values": {"env": "Hopper-v5"}})]
    assert marks.known_metadata()["env"] == "Hopper-v5"
