"""Shares of operations between rows, worked by hand on an injected clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline.profile import _native, marks
from redline.train.loops.on_policy_loop import OnPolicyLoop
from redline.train.progress.operation_shares import COLUMNS, OPERATIONS, OperationShares

MARKS = 1


@pytest.fixture
def tick(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Record with a clock that moves only when told."""
    now_ns = 1_000
    _native.set_clock(now_ns)
    _native.start(str(tmp_path))
    _native.set_active(MARKS)

    def move(ns: int) -> None:
        nonlocal now_ns
        now_ns += ns
        _native.set_clock(now_ns)

    yield move
    _native.stop()
    _native.set_clock(None)


def test_shares_are_of_the_time_since_the_last_row(tick: Callable[[int], None]) -> None:
    """First 100 ns: collection 20 around simulation 50, 10 of a mark of another name, 20 of none.

    Then 40 ns: learning 10 around backpropagation 30, which began before the row.
    """
    shares = OperationShares()
    assert shares.recording
    with marks.operation("collection"):
        tick(5)
        with marks.operation("simulation"):
            tick(50)
        tick(15)
    with marks.operation("an augmentation"):
        tick(10)
    tick(20)
    first = shares.take()
    assert tuple(first) == OPERATIONS
    assert {name: share for name, share in first.items() if share} == pytest.approx(
        {"collection": 0.2, "simulation": 0.5, "other": 0.3}
    )
    with marks.operation("learning"):
        tick(10)
        with marks.operation("backpropagation"):
            tick(30)
            second = shares.take()
    assert second["learning"] == pytest.approx(0.25)
    assert second["backpropagation"] == pytest.approx(0.75)
    assert sum(second.values()) == pytest.approx(1.0)
    assert shares.take() == {}, "no time has passed"


def test_nothing_is_said_while_nothing_records(tick: Callable[[int], None]) -> None:
    shares = OperationShares()
    _native.set_active(0)
    tick(10)
    assert shares.take() == {}
    assert marks.operation_times() == {}
    assert not OperationShares().recording


def test_what_a_row_says_of_the_loop_is_logging(tick: Callable[[int], None]) -> None:
    """30 ns to compute the loop's own columns and 10 to write the row, after 60 of learning."""

    class Ticking(OnPolicyLoop):
        def _own_columns(self) -> dict[str, float | None]:
            tick(30)
            return {}

    loop: Any = object.__new__(Ticking)
    loop.counters, loop.collector, loop.worker_restarts = None, None, 0
    loop._rows = SimpleNamespace(write=lambda *_, **__: tick(10))
    shares = OperationShares()
    with marks.operation("learning"):
        tick(60)
    loop._write_row()
    found = {name: share for name, share in shares.take().items() if share}
    assert found == pytest.approx({"learning": 0.6, "logging": 0.4})


def test_columns_are_named_after_the_operations() -> None:
    assert COLUMNS[0] == "time_share/inference"
    assert COLUMNS[-1] == "time_share/other"
