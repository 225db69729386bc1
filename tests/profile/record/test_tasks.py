"""Marks across `await`, with an injected clock: a task's mark covers that task alone."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from redline import profile
from redline.profile import _native
from redline.profile.record.tasks import separating
from tests.profile.conftest import FakeRecorder


@pytest.fixture
def recorder(
    fake_recorder: Callable[..., FakeRecorder], monkeypatch: pytest.MonkeyPatch
) -> FakeRecorder:
    monkeypatch.setattr(events.Handle, "_run", separating(events.Handle._run))
    return fake_recorder()


def innermost(recorder: FakeRecorder) -> dict[str, int]:
    """Ns in each innermost mark, "" for none, from the first event to the last."""
    recorder.stop()
    found: dict[str, int] = defaultdict(int)
    stack, before = [""], None
    for event in recorder.events():
        if before is not None:
            found[stack[-1]] += event[0] - before
        before = event[0]
        if event[1] == "begin":
            stack.append(event[2])
        elif event[1] == "end":
            assert stack.pop() == event[2]
    assert stack == [""]
    return {name: ns for name, ns in found.items() if ns}


def test_a_suspended_mark_does_not_cover_other_tasks(recorder: FakeRecorder) -> None:
    """Each task works 3 times 10, 7 and 1 ns; `sleep(0)` lets the others run in between."""

    async def work(name: str, ns: int) -> None:
        with profile.operation(name):
            for _ in range(3):
                recorder.tick(ns)
                await asyncio.sleep(0)

    async def unmarked() -> None:
        for _ in range(3):
            recorder.tick(1)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work("a", 10), work("b", 7), unmarked())

    with profile.operation("around"):
        asyncio.run(main())
    assert innermost(recorder) == {"a": 30, "b": 21, "around": 3}


def test_nested_marks_come_back_in_their_order(recorder: FakeRecorder) -> None:
    async def main() -> None:
        with profile.operation("outer"):
            recorder.tick(1)
            with profile.operation("inner"), profile.operation("inner"):
                recorder.tick(2)
                await asyncio.sleep(0)
                recorder.tick(4)
            await asyncio.sleep(0)
            recorder.tick(8)
        recorder.tick(16)
        with profile.operation("end"):
            recorder.tick(32)

    asyncio.run(main())
    assert innermost(recorder) == {"outer": 9, "inner": 6, "": 16, "end": 32}


def test_a_task_does_not_inherit_marks(recorder: FakeRecorder) -> None:
    """The parent has suspended its mark before the child starts, with a copy of its context."""

    async def child() -> None:
        recorder.tick(5)
        await asyncio.sleep(0)
        recorder.tick(5)

    async def main() -> None:
        with profile.operation("parent"):
            await asyncio.sleep(0)
            recorder.tick(3)
            await asyncio.create_task(child())
            recorder.tick(3)

    asyncio.run(main())
    assert innermost(recorder) == {"parent": 6, "": 10}


def test_a_task_where_an_ended_one_lay_has_none_of_its_marks(recorder: FakeRecorder) -> None:
    """The parent's context is freed, and one of its grandchildren's takes its place in memory."""

    async def grandchild() -> None:
        recorder.tick(1)

    async def child() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.gather(*(grandchild() for _ in range(50)))

    async def parent() -> asyncio.Task[None]:
        with profile.operation("parent"):
            await asyncio.sleep(0)
            recorder.tick(3)
            return asyncio.create_task(child())

    async def main() -> None:
        await (await asyncio.create_task(parent()))
        with profile.operation("end"):
            recorder.tick(1)

    asyncio.run(main())
    assert innermost(recorder) == {"parent": 3, "": 50, "end": 1}


def test_a_mark_left_by_an_exception_or_a_cancellation_ends(recorder: FakeRecorder) -> None:
    async def forever() -> None:
        with profile.operation("waits"):
            recorder.tick(2)
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        recorder.tick(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        recorder.tick(8)
        with profile.operation("end"):
            recorder.tick(1)

    asyncio.run(main())
    assert innermost(recorder) == {"waits": 2, "": 12, "end": 1}


def test_nothing_is_done_while_nothing_records() -> None:
    calls: list[Any] = []
    separating(calls.append)("a handle")
    assert calls == ["a handle"]


def test_what_is_no_id_is_refused(recorder: FakeRecorder) -> None:
    with pytest.raises(ValueError, match="no id: 3"):
        _native.begin_marks((3,))
    with pytest.raises(TypeError, match="what end_marks returned"):
        _native.begin_marks([3])  # pyright: ignore[reportArgumentType]
    assert _native.end_marks(_native.open_marks()) == ()
