"""The calibrator: where its blocks begin and end, with an injected clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redline import profile
from redline.profile import _native
from redline.profile.record import calibrate
from redline.profile.record.calibrate import (
    BLOCK_NS,
    RARE,
    STEADY,
    Calibrator,
    Limit,
    Schedule,
    choose_anchor,
)
from tests.profile.shards import PROBE_OFF, PROBE_ON

MS = 1_000_000


def test_the_anchor_is_the_rarest_mark_that_ends_often_enough() -> None:
    """Beside the two that ended before: steps 40 times, iterations 4 times, a row once."""
    before = {8: (0, 2), 9: (5, 7)}
    after = {8: (1, 42), 9: (5, 11), 10: (3, 1), 11: (9, 0)}
    assert choose_anchor(before, after) == 9
    assert choose_anchor(after, after) == 0
    assert choose_anchor({}, {}) == 0


class Program:
    """Iterations of ten steps of 1 ms and a learning mark of 2 ms, on an injected clock."""

    def __init__(self, recorder: Any, cpu_share: float = 1.0, wrapped: Sequence[str] = ()) -> None:
        """`wrapped`: what is no mark, but a method that the profiler wraps."""
        self.recorder, self.cpu_share = recorder, cpu_share
        self.step = self._part("step", MS, "step" in wrapped)
        self.learn = self._part("learn", 2 * MS, "learn" in wrapped)

    def _part(self, name: str, ns: int, is_wrapped: bool) -> Callable[[], object]:
        def part() -> None:
            self.tick(ns)

        if is_wrapped:
            number = _native.intern("operation", name)
            return _native.Wrapper(part, number, operation=True)
        return profile.operation(name)(part)

    def tick(self, ns: int) -> None:
        self.recorder.tick(ns)

    def iterate(self, seconds: float) -> None:
        until = self.recorder.now_ns + round(seconds * 1e9)
        while self.recorder.now_ns < until:
            for _ in range(10):
                self.step()
            self.learn()

    def cpu_ns(self) -> int:
        return round(self.recorder.now_ns * self.cpu_share)


def markers(events: list[tuple]) -> list[tuple[int, bool, str]]:
    """(time_ns, observed from there, the mark that ended there) of each marker."""
    found, last = [], ""
    for event in events:
        if event[1] == "end":
            last = event[2]
        elif event[1] in (PROBE_ON, PROBE_OFF):
            found.append((event[0], event[1] == PROBE_ON, last))
    return found


def calibrated(
    fake_recorder: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    cpu_share: float = 1.0,
    schedule: Schedule = RARE,
    wrapped: Sequence[str] = (),
) -> tuple[list[tuple[int, bool, str]], list[bool]]:
    # The injected clock outruns the writer: the ring has room for all.
    recorder = fake_recorder(ring_words=1 << 19)
    program = Program(recorder, cpu_share, wrapped)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    switched: list[bool] = []
    Calibrator(switched.append, schedule).start(recorder.now_ns)
    program.iterate(seconds)
    _native.set_block_hook(None, 0)
    assert recorder.stop()["dropped"] == 0
    return markers(recorder.events()), switched


@pytest.mark.parametrize("wrapped", [(), ("step",), ("learn",), ("step", "learn")])
def test_blocks_hold_whole_iterations(
    wrapped: tuple[str, ...], fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration takes 12 ms: blocks of 40 ms become four of them, 48 ms.

    Its parts are marks, or methods that the profiler wraps, as those of environments are.
    """
    found, switched = calibrated(fake_recorder, monkeypatch, 0.7, wrapped=wrapped)
    assert [observed for _, observed, _ in found[:6]] == [True, False, False, True, True, True]
    assert {name for _, _, name in found[:6]} == {"learn"}
    times = [ns for ns, _, _ in found]
    assert [times[i + 1] - times[i] for i in (0, 2, 4)] == [48 * MS] * 3
    assert [times[i + 1] - times[i] for i in (1, 3)] == [12 * MS] * 2  # settling
    assert switched[:2] == [False, True]


def test_a_thread_that_mostly_waits_gets_longer_blocks(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half the CPU 0.9 * 40 ms of it take 72 ms, six iterations; with a tenth it is 120."""
    times = [ns for ns, _, _ in calibrated(fake_recorder, monkeypatch, 1.0, cpu_share=0.5)[0]]
    assert times[1] - times[0] == 72 * MS


def test_a_thread_that_hardly_runs_is_not_waited_for_long(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [ns for ns, _, _ in calibrated(fake_recorder, monkeypatch, 2.0, cpu_share=0.1)[0]]
    assert times[1] - times[0] == calibrate.LONGEST_NS


def test_cycles_become_rare(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, switched = calibrated(fake_recorder, monkeypatch, 40.0)
    ends_ns = [found[i][0] for i in range(5, len(found), 6)]
    gaps_s = [(b - a) / 1e9 for a, b in itertools.pairwise(ends_ns)]
    assert max(gaps_s[:20]) < 0.3
    assert min(gaps_s[-10:]) > 1.0
    off_ns = sum(found[i + 1][0] - found[i][0] for i in range(1, len(found) - 2, 6))
    assert switched.count(False) == switched.count(True)
    assert 30 < len(ends_ns) < 80
    assert off_ns > BLOCK_NS


def test_where_the_probe_is_costly_it_rests_a_third_of_the_time(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration takes 12 ms. Looking around and the blocks with the probe: 48 ms each; without
    it 60, 12 more behind each switch, one of them without it; and a rest of one: 72 of 240."""
    found, _ = calibrated(fake_recorder, monkeypatch, 40.0, schedule=STEADY)
    off = [found[i + 1][0] - found[i - 1][0] for i in range(2, len(found) - 4, 6)]
    cycles = [found[i + 6][0] - found[i][0] for i in range(0, len(found) - 10, 6)]
    assert set(off) == {72 * MS}
    for part in (slice(0, 50), slice(-50, None)):
        share = sum(off[part]) / sum(cycles[part])
        assert 0.28 < share < 0.36


def test_a_mark_that_ends_no_more_is_not_waited_for(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that waits for `learn` ends with another mark, 80 ms late at most."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    Calibrator(lambda on: None, RARE).start(recorder.now_ns)
    program.iterate(0.375)  # at 300 ms it looks around; the block begins at the `learn` after 340
    for _ in range(300):
        with profile.operation("evaluation step"):
            program.tick(MS)
    _native.set_block_hook(None, 0)
    recorder.stop()
    found = markers(recorder.events())
    assert found[0][2] == "learn"
    assert found[1][2] == "evaluation step"
    late_ns = found[1][0] - found[0][0] - BLOCK_NS
    assert calibrate.PATIENCE_NS <= late_ns <= calibrate.PATIENCE_NS + MS


def test_the_probe_rests_until_the_average_is_below_the_limit() -> None:
    """1,000 events in 100 ms and then in 1 ms, at most 20,000 a second: 50 ms each are due."""
    events, acted = 0, 0

    def act() -> None:
        nonlocal acted
        acted += 1

    limit = Limit(20_000.0, lambda: events, act)
    assert limit.rest_ns(0) == 0
    events = 1_000
    assert limit.rest_ns(100 * MS) == 0
    assert acted == 0
    events = 2_000
    assert limit.rest_ns(101 * MS) == 49 * MS
    events = 2_100  # of marks, while the probe rested; from 150 to 151 ms 100 are 4 ms too many
    assert limit.rest_ns(151 * MS) == 4 * MS
    events = 1_000_000
    assert limit.rest_ns(160 * MS) == calibrate.LONGEST_REST_NS
    assert acted == 1
    assert Limit(0.0, lambda: 10**9, act).rest_ns(MS) == 0


def test_where_events_come_too_fast_the_probe_rests_between_cycles(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand events a second, half of it allowed: unobserved half of the time at least.

    What rests leaves markers that are no calibration cycle: two in a row that differ.
    """
    recorder = fake_recorder(ring_words=1 << 19)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    limit = Limit(50_000.0, lambda: recorder.now_ns // 10_000, lambda: None)
    switched: list[tuple[int, bool]] = []
    calibrator = Calibrator(lambda on: switched.append((recorder.now_ns, on)), RARE, limit)
    calibrator.start(recorder.now_ns)
    program.iterate(5.0)
    _native.set_block_hook(None, 0)
    recorder.stop()
    found = markers(recorder.events())
    off_ns = sum(b[0] - a[0] for a, b in itertools.pairwise(switched) if not a[1])
    assert off_ns > 0.5 * (switched[-1][0] - switched[0][0])
    rests = [
        i
        for i in range(5, len(found) - 3)
        if found[i - 1][1] and not found[i][1] and found[i + 1][1]
    ]
    assert rests


def an_import(recorder: Any, modules: int) -> Callable[[], None]:
    """Imports so many modules within one, each of 1 ms."""
    number = _native.intern("operation", calibrate.IMPORTS)

    def find_and_load(module: int) -> None:
        recorder.tick(MS)
        if not module:
            for each in range(1, modules + 1):
                wrapped(each)

    wrapped = _native.Wrapper(find_and_load, number, operation=True, is_long=True)
    return lambda: wrapped(0)


def test_the_probe_rests_while_modules_are_imported(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked after each module: from 5 ms on it rests for 45, and sees 5. At the end of the
    import, here after 121 ms, it sees again at once. The first cycle begins no earlier for it."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    switched: list[bool] = []
    Calibrator(switched.append, RARE).start(recorder.now_ns)
    an_import(recorder, 120)()
    program.iterate(0.4)
    _native.set_block_hook(None, 0)
    recorder.stop()
    found = markers(recorder.events())
    assert [ns // MS for ns, _, _ in found[:6]] == [5, 50, 55, 100, 105, 121]
    assert [observed for _, observed, _ in found[:6]] == [False, True] * 3
    assert switched[:6] == [False, True] * 3
    assert found[6][0] >= calibrate.FIRST_NS


def test_an_import_within_a_block_is_left_to_it(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block lasts until the program goes on, and the cycle goes on after it."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    begun = recorder.now_ns  # the events' times count from here
    Calibrator(lambda on: None, RARE).start(begun)
    program.iterate(0.36)  # at 300 ms it looks around; the first block begins at 348
    began = recorder.now_ns - begun
    an_import(recorder, 120)()
    ended = recorder.now_ns - begun
    program.iterate(0.3)
    _native.set_block_hook(None, 0)
    recorder.stop()
    found = markers(recorder.events())
    assert [observed for _, observed, _ in found[:6]] == [True, False, False, True, True, True]
    assert not [ns for ns, _, _ in found if began < ns < ended]


def test_a_program_that_runs_within_an_import_is_calibrated(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module's body trains: the rest ends with the first mark, and cycles come as ever."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    number = _native.intern("operation", calibrate.IMPORTS)

    def find_and_load(is_program: bool) -> None:
        recorder.tick(6 * MS)
        if is_program:
            wrapped(False)  # at its end, after 12 ms, the probe begins to rest
            program.iterate(0.7)

    wrapped = _native.Wrapper(find_and_load, number, operation=True, is_long=True)
    Calibrator(lambda on: None, RARE).start(recorder.now_ns)
    wrapped(True)
    _native.set_block_hook(None, 0)
    recorder.stop()
    found = markers(recorder.events())
    assert [observed for _, observed, _ in found[:2]] == [False, True]
    assert found[0][0] == 12 * MS
    assert found[1][0] <= (12 + calibrate.IMPORTS_REST_NS // MS + 2) * MS
    assert [observed for _, observed, _ in found[2:8]] == [True, False, False, True, True, True]
    assert found[2][0] >= calibrate.FIRST_NS


def test_only_a_rest_of_an_import_is_woken(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 ms long from 12 ms on, and 20 ms late: at 77 ms.

    A block is to hold whole units, and no one would ask again how long the limit rests.
    """
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    woken: list[int] = []
    monkeypatch.setattr(_native, "wake_block_hook", woken.append)
    began = recorder.now_ns
    limit = Limit(1000.0, lambda: recorder.now_ns - began, lambda: None)
    Calibrator(lambda on: None, RARE, limit).start(began)
    number = _native.intern("operation", calibrate.IMPORTS)

    def find_and_load(is_outer: bool) -> None:
        recorder.tick(6 * MS)
        if is_outer:
            wrapped(False)
            recorder.tick(6 * MS)

    wrapped = _native.Wrapper(find_and_load, number, operation=True, is_long=True)
    wrapped(True)
    program.iterate(3.0)
    _native.set_block_hook(None, 0)
    recorder.stop()
    assert [at - began for at in woken if at >= 0] == [77 * MS]


def test_without_a_clock_that_could_end_it_no_rest_begins(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = fake_recorder(ring_words=1 << 16)
    monkeypatch.delattr(calibrate.time, "pthread_getcpuclockid")
    switched: list[bool] = []
    Calibrator(switched.append, RARE).start(recorder.now_ns)
    an_import(recorder, 120)()
    _native.set_block_hook(None, 0)
    recorder.stop()
    assert switched == []


def test_without_other_threads_clocks_a_rest_of_the_limit_ends(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: the calibrated thread, which ends it, always knows its own time."""
    recorder = fake_recorder(ring_words=1 << 19)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    monkeypatch.delattr(calibrate.time, "pthread_getcpuclockid")
    limit = Limit(50_000.0, lambda: recorder.now_ns // 10_000, lambda: None)
    switched: list[bool] = []
    Calibrator(switched.append, RARE, limit).start(recorder.now_ns)
    program.iterate(3.0)
    _native.set_block_hook(None, 0)
    recorder.stop()
    assert switched.count(True) > 3


def test_a_mark_that_is_named_imports_is_no_import(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program marks so is observed: nothing would say when such a rest is over."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    switched: list[bool] = []
    Calibrator(switched.append, RARE).start(recorder.now_ns)
    with profile.operation(calibrate.IMPORTS):
        an_import(recorder, 120)()
    _native.set_block_hook(None, 0)
    recorder.stop()
    assert switched == []


def test_after_an_import_that_fails_the_probe_is_on(
    fake_recorder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module within one is not there, as an optional one: the rest goes on with the outer one and
    ends with it. Later imports are no less seen."""
    recorder = fake_recorder(ring_words=1 << 16)
    program = Program(recorder)
    monkeypatch.setattr(calibrate.time, "thread_time_ns", program.cpu_ns)
    number = _native.intern("operation", calibrate.IMPORTS)

    def find_and_load(name: str) -> None:
        recorder.tick(6 * MS)
        if name == "missing":
            raise ModuleNotFoundError(name)
        if name == "outer":
            wrapped("inner")  # it rests from its end on, at 12 ms
            with pytest.raises(ModuleNotFoundError):
                wrapped("missing")

    wrapped = _native.Wrapper(find_and_load, number, operation=True, is_long=True)
    switched: list[tuple[int, bool]] = []
    began = recorder.now_ns
    Calibrator(lambda on: switched.append((recorder.now_ns - began, on)), RARE).start(began)
    wrapped("outer")
    assert switched == [(12 * MS, False), (18 * MS, True)]
    with pytest.raises(ModuleNotFoundError):
        wrapped("missing")
    assert len(switched) == 2
    _native.set_block_hook(None, 0)
    recorder.stop()


def test_the_end_of_an_import_is_asked_once_another_thread_has_left_the_hook(
    fake_recorder: Callable[..., Any],
) -> None:
    """Else the probe would rest until a mark ends, which a program without marks never has."""
    recorder = fake_recorder(ring_words=1 << 16)
    asked: list[int] = []
    is_in, may_leave = threading.Event(), threading.Event()

    def hook(now_ns: int) -> int:
        asked.append(threading.get_ident())
        if len(asked) == 1:
            is_in.set()
            may_leave.wait(10.0)
        return now_ns + 1_000_000 * MS

    def work() -> None:
        with profile.operation("step"):
            recorder.tick(MS)

    _native.set_block_hook(hook, 0)
    other = threading.Thread(target=work)
    other.start()
    assert is_in.wait(10.0)
    an_import(recorder, 0)()
    assert len(asked) == 1
    may_leave.set()
    other.join()
    for _ in range(1000):
        if len(asked) > 1:
            break
        time.sleep(0.001)
    _native.set_block_hook(None, 0)
    recorder.stop()
    assert asked == [other.ident, threading.get_ident()]


def test_a_forked_child_forgets_its_parents_hook(profiled: Any) -> None:
    """It would hold all that the parent's recorder holds."""
    profiled.run(
        """
import os, warnings, weakref
from redline.profile import _native

warnings.simplefilter("ignore")  # from 3.12 on, of a fork beside threads
class Hook:
    def __call__(self, now_ns):
        return now_ns

hook = Hook()
_native.set_block_hook(hook, 1)
seen = weakref.ref(hook)
del hook
child = os.fork()
if child == 0:
    os._exit(seen() is not None)
assert os.waitpid(child, 0)[1] == 0
assert seen() is not None
""",
        calibrate=False,
    )
