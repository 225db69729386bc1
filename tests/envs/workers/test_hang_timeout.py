"""How long workers may stand still, with a clock that is set by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from redline.envs.workers import hang_timeout


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(hang_timeout, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_worker_that_stands_still_is_named_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worker 1 beats once at 103 s: its 8 s end at 111, those of worker 0 at 108."""
    clock, beats = Clock(monkeypatch), [0, 0]
    timeout = hang_timeout.HangTimeout([0, 1], 8.0, beats.__getitem__)
    for clock.now, beats[1], expected in (
        (103.0, 1, []), (107.9, 1, []), (108.0, 1, [0]), (110.9, 1, [0]), (111.0, 1, [0, 1])
    ):  # fmt: skip
        timeout.next_check_s([0, 1])
        assert timeout.hung([0, 1]) == expected


def test_a_program_that_was_stopped_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped from 101 to 161 s by Ctrl-Z: 59.5 s too late, so the 8 s that
    began at 100 end at 167.5."""
    clock = Clock(monkeypatch)
    timeout = hang_timeout.HangTimeout([0], 8.0, lambda _: 0)
    clock.now = 101.0
    assert timeout.next_check_s([0]) == 0.5
    clock.now = 161.0  # 59.5 s after it should have looked again
    assert timeout.hung([0]) == []
    timeout.next_check_s([0])
    clock.now = 161.5
    assert timeout.hung([0]) == []
    for clock.now in (162.0, 163.0, 164.0, 165.0, 166.0, 167.0):
        assert timeout.hung([0]) == []
        timeout.next_check_s([0])
    clock.now = 167.5
    assert timeout.hung([0]) == [0]


def test_the_wait_without_a_heartbeat_is_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    timeout = hang_timeout.HangTimeout([0, 1], 8.0, None)
    clock.now = 102.0
    assert timeout.next_check_s([0]) == 6.0
    clock.now = 108.0
    assert timeout.hung([0]) == [0]
