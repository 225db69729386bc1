"""Freeing native objects, which no call event shows: timed as calls of their library."""

from __future__ import annotations

from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest

from redline import profile
from redline.profile import _native, levels
from redline.profile.analyse.summary import summarize


class Derived(deque[Any]):
    """Written in Python: its release calls that of its native base."""


class Broken(deque[Any]):
    """Runs Python code as it is released."""

    def __del__(self) -> None:
        self.append(deque())


def make_and_drop(number: int, kind: type = deque) -> None:
    for _ in range(number):
        kind()


@pytest.fixture
def number() -> int:
    return _native.intern("call", "deque (release)", levels.BACKEND, "collections")


def released(directory: Path) -> int:
    rows = summarize(directory).functions
    return sum(row.calls for row in rows if row.function == "collections.deque (release)")


def test_only_what_python_lets_go_of_counts_and_only_while_recorded(
    tmp_path: Path, number: int
) -> None:
    """100 of a type, 50 of a class derived from it, 10 that free another as they go; one of ten.

    What is freed inside of a release, here nine by a tenth, is the work of that.
    """
    with profile.session(tmp_path / "s", calibrate=False):
        make_and_drop(7)
        assert _native.time_release(deque, number, levels.BACKEND)
        try:
            make_and_drop(100)
            make_and_drop(50, Derived)
            nested = deque(deque() for _ in range(9))
            del nested
            make_and_drop(10, Broken)
        finally:
            _native.restore_release(deque)
        make_and_drop(7)
    make_and_drop(7)
    assert released(tmp_path / "s") == 100 + 50 + 1 + 10


def test_a_release_in_a_native_thread_makes_it_no_thread_of_python(
    profiled: Any,
) -> None:
    """Autograd's threads free tensors: the first thread's waiting must not count as their work."""
    profiled.run(
        """
import mujoco, time
from collections import OrderedDict, deque
from redline import profile
from redline.profile import _native
number = _native.intern("call", "deque (release)", 1, "collections")
assert _native.time_release(deque, number, 1)
held = deque()
mujoco.release_elsewhere(held)
del held
time.sleep(0.1)
with profile.operation("wait"):
    time.sleep(0.5)
_native.restore_release(deque)
""",
        calibrate=False,
    )
    cells = {(c.operation, c.level): c.raw_s for c in summarize(profiled.session).cells}
    assert cells["wait", "waiting"] >= 0.45
    assert cells.get(("wait", "python"), 0.0) < cells["wait", "waiting"] / 2


def test_a_type_is_timed_once_and_can_be_again(number: int) -> None:
    """Also one whose class written in Python was made meanwhile."""
    assert _native.time_release(deque, number, levels.BACKEND)
    try:
        assert not _native.time_release(deque, number, levels.BACKEND)
        made_meanwhile = type("Later", (deque,), {})
        make_and_drop(3, made_meanwhile)
    finally:
        _native.restore_release(deque)
    make_and_drop(3, made_meanwhile)
    assert _native.time_release(deque, number, levels.BACKEND)
    _native.restore_release(deque)


def test_a_type_related_to_a_timed_one_is_not_timed(number: int) -> None:
    """The release of an OrderedDict calls that of a dict."""
    assert _native.time_release(OrderedDict, number, levels.BACKEND)
    try:
        assert not _native.time_release(dict, number, levels.BACKEND)
        make_and_drop(3, OrderedDict)
    finally:
        _native.restore_release(OrderedDict)


def test_classes_of_python_code_and_bad_levels_are_refused(number: int) -> None:
    assert not _native.time_release(Derived, number, levels.BACKEND)
    with pytest.raises(ValueError, match="level 0 is out of range"):
        _native.time_release(deque, number, levels.PYTHON)
    with pytest.raises(TypeError):
        _native.time_release(3, number, levels.BACKEND)
