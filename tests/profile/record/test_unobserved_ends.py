"""Operations that the probe begins, and whose functions return while it is off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redline import profile
from redline.profile import _native
from redline.profile.record import boundary
from redline.profile.record.boundary import Boundary
from tests.profile.conftest import FakeRecorder


class Probed:
    """A recording with the probe, on a clock that moves only when told."""

    def __init__(self, recorder: FakeRecorder) -> None:
        self.recorder, self.tick, self.probe = recorder, recorder.tick, Boundary()
        self.probe.attach()
        _native.probe(True, 0)

    def switch(self, on: bool) -> None:
        """As the calibrator does."""
        (self.probe.resume if on else self.probe.pause)()
        _native.probe(on, 0)

    def marks(self, thread: int = 0) -> list[tuple]:
        """When operations began and ended in this thread; locks are waited for, too."""
        self.probe.detach()
        self.recorder.stop()
        events = self.recorder.events(thread)
        return [e for e in events if e[-1] in ("inference", "simulation")]


@pytest.fixture
def probed(
    fake_recorder: Callable[..., FakeRecorder], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Probed]:
    number = _native.intern("inferred", "inference")
    rule = (__file__, lambda: (number, 0, 1, None))
    monkeypatch.setitem(boundary.CODE_RULES, "inferring", (rule,))
    made = Probed(fake_recorder())
    yield made
    made.probe.detach()


def inferring(inside: Callable[[], Any]) -> None:
    """A function that the probe takes for an operation."""
    inside()


def test_what_returns_unobserved_ends_when_the_probe_goes_on(probed: Probed) -> None:
    """The probe goes off within an inference, at 3, and on at 10; the next one is told as ever."""

    def rest() -> None:
        probed.tick(3)
        probed.switch(False)
        probed.tick(1)

    inferring(rest)
    probed.tick(6)
    probed.switch(True)
    probed.tick(5)
    inferring(lambda: probed.tick(2))
    assert probed.marks() == [
        (0, "begin", "inference"),
        (10, "end", "inference"),
        (15, "begin", "inference"),
        (17, "end", "inference"),
    ]


def test_what_still_runs_goes_on(probed: Probed) -> None:
    """A worker's loop is begun once, and outlasts each rest of the probe; marks within, too."""

    def rest_twice() -> None:
        for _ in range(2):
            probed.switch(False)
            probed.tick(10)
            probed.switch(True)
        with profile.operation("simulation"):
            probed.switch(False)
            probed.tick(1)
            probed.switch(True)
            probed.tick(1)
        probed.tick(1)

    inferring(rest_twice)
    assert probed.marks() == [
        (0, "begin", "inference"),
        (20, "begin", "simulation"),
        (22, "end", "simulation"),
        (23, "end", "inference"),
    ]


def test_a_mark_begun_meanwhile_stays_open(probed: Probed) -> None:
    inferring(lambda: probed.switch(False))
    with profile.operation("simulation"):
        probed.tick(4)
        probed.switch(True)
        probed.tick(2)
    assert probed.marks() == [
        (0, "begin", "inference"),
        (0, "begin", "simulation"),
        (4, "end", "inference"),
        (6, "end", "simulation"),
    ]


def test_of_two_calls_of_one_function_the_inner_returned(probed: Probed) -> None:
    def rest() -> None:
        inferring(lambda: probed.switch(False))
        probed.tick(3)
        probed.switch(True)
        probed.tick(4)

    inferring(rest)
    probed.tick(5)
    inferring(lambda: probed.tick(2))
    assert probed.marks() == [
        (0, "begin", "inference"),
        (7, "end", "inference"),
        (12, "begin", "inference"),
        (14, "end", "inference"),
    ]


def test_other_threads_are_told_apart(probed: Probed) -> None:
    """The thread is within its function at the first rest, and has left it at the second."""
    turns = threading.Semaphore(0), threading.Semaphore(0)

    def hand_over() -> None:
        turns[0].release()
        turns[1].acquire()

    def other() -> None:
        inferring(hand_over)
        hand_over()

    thread = threading.Thread(target=other)
    thread.start()
    turns[0].acquire()
    probed.switch(False)
    probed.tick(10)
    probed.switch(True)
    probed.tick(10)
    probed.switch(False)
    turns[1].release()
    turns[0].acquire()
    probed.tick(10)
    probed.switch(True)
    probed.tick(5)
    turns[1].release()
    thread.join()
    assert probed.marks(thread=1) == [(0, "begin", "inference"), (30, "end", "inference")]
