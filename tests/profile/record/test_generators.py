"""Marks across `yield`, with an injected clock: a generator's mark covers that generator alone.

Consumers tick 100, generators 1 to 10, so that each sum says whose time it is.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from redline import profile
from redline.profile import _native
from redline.profile.record.generators import TOOL_IDS, Generators
from tests.profile.conftest import FakeRecorder
from tests.profile.record.test_tasks import innermost

MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
TELLS = MONITORING is not None
ONLY_WHERE_TOLD = pytest.mark.skipif(not TELLS, reason="Python 3.11 does not tell what suspends")


@pytest.fixture
def recorder(fake_recorder: Callable[..., FakeRecorder]) -> Iterator[FakeRecorder]:
    if not TELLS:
        pytest.skip("Python 3.11 does not tell what suspends")
    generators = Generators()
    assert generators.attach() == ""
    try:
        yield fake_recorder()
    finally:
        generators.detach()


def sums(recorder: FakeRecorder) -> dict[str, int]:
    """Ns in each innermost mark, "" for none, up to now."""
    with profile.operation("end"):
        pass
    return innermost(recorder)


def numbers(recorder: FakeRecorder, name: str, ns: int, count: int = 3) -> Generator[int, Any]:
    """Each value takes so long, and so does the end."""
    with profile.operation(name):
        for i in range(count):
            recorder.tick(ns)
            yield i
        recorder.tick(ns)


def test_a_suspended_mark_does_not_cover_the_consumer(recorder: FakeRecorder) -> None:
    """3 values and the end: 4 times 1 ns; the consumer has 3 times 100."""
    with profile.operation("around"):
        for _ in numbers(recorder, "load", 1):
            recorder.tick(100)
    assert sums(recorder) == {"load": 4, "around": 300}


def test_the_consumers_marks_are_its_own(recorder: FakeRecorder) -> None:
    for _ in numbers(recorder, "load", 1):
        with profile.operation("use"):
            recorder.tick(100)
        recorder.tick(1000)
    assert sums(recorder) == {"load": 4, "use": 300, "": 3000}


def test_nested_marks_come_back_in_their_order(recorder: FakeRecorder) -> None:
    def nested() -> Iterator[int]:
        with profile.operation("outer"):
            recorder.tick(1)
            with profile.operation("inner"), profile.operation("inner"):
                recorder.tick(2)
                yield 0
                recorder.tick(4)
            yield 1
            recorder.tick(8)
        yield 2
        recorder.tick(16)

    for _ in nested():
        recorder.tick(100)
    assert sums(recorder) == {"outer": 9, "inner": 6, "": 316}


def test_interleaved_generators_keep_their_marks_apart(recorder: FakeRecorder) -> None:
    """a: 4 times 1, b: 4 times 2; both of them are open at once throughout."""
    pairs = zip(numbers(recorder, "a", 1), numbers(recorder, "b", 2), strict=True)
    with profile.operation("around"):
        for _ in pairs:
            recorder.tick(100)
    assert sums(recorder) == {"a": 4, "b": 8, "around": 300}


def test_a_generator_in_a_generator(recorder: FakeRecorder) -> None:
    """`outer` works 1 ns before and after each of the values that it passes on."""

    def outer() -> Iterator[int]:
        with profile.operation("outer"):
            for i in numbers(recorder, "inner", 10):
                recorder.tick(1)
                yield i
                recorder.tick(1)

    for _ in outer():
        recorder.tick(100)
    assert sums(recorder) == {"inner": 40, "outer": 6, "": 300}


def test_delegation_suspends_the_marks_of_both(recorder: FakeRecorder) -> None:
    def outer() -> Generator[int, Any]:
        with profile.operation("outer"):
            recorder.tick(1)
            yield from numbers(recorder, "inner", 10)
            recorder.tick(1)

    for _ in outer():
        recorder.tick(100)
    assert sums(recorder) == {"inner": 40, "outer": 2, "": 300}


@pytest.mark.parametrize("how", ["next", "send", "method"])
def test_each_way_to_go_on(recorder: FakeRecorder, how: str) -> None:
    made = numbers(recorder, "load", 1, count=2)
    go_on = {
        "next": lambda: next(made),
        "send": lambda: made.send(None),
        "method": made.__next__,
    }[how]
    for _ in range(2):
        go_on()
        recorder.tick(100)
    with pytest.raises(StopIteration):
        go_on()
    recorder.tick(100)
    assert sums(recorder) == {"load": 3, "": 300}


def test_native_consumers_are_consumers(recorder: FakeRecorder) -> None:
    def ticking(i: int) -> int:
        recorder.tick(100)
        return i

    with profile.operation("around"):
        assert list(map(ticking, numbers(recorder, "load", 1))) == [0, 1, 2]
    assert sums(recorder) == {"load": 4, "around": 300}


def cleaning(recorder: FakeRecorder) -> Generator[int, Any]:
    """Its end takes 4 ns, whatever ends it."""
    with profile.operation("load"):
        try:
            recorder.tick(2)
            yield 0
        finally:
            recorder.tick(4)


@pytest.mark.parametrize("how", ["close", "throw", "drop"])
def test_a_generator_that_is_ended_while_suspended(recorder: FakeRecorder, how: str) -> None:
    """The consumer has an open mark of the same name, which is not the generator's to end."""
    with profile.operation("load"), profile.operation("around"):
        made = cleaning(recorder)
        next(made)
        recorder.tick(100)
        if how == "close":
            made.close()
        elif how == "throw":
            with pytest.raises(KeyError):
                made.throw(KeyError())
        del made
        gc.collect()
        recorder.tick(100)
    recorder.tick(1)
    assert sums(recorder) == {"load": 6, "around": 200, "": 1}


def test_what_is_ended_through_a_generator_that_delegates(recorder: FakeRecorder) -> None:
    def outer() -> Generator[int, Any]:
        with profile.operation("outer"):
            recorder.tick(1)
            yield from cleaning(recorder)

    made = outer()
    with profile.operation("around"):
        next(made)
        recorder.tick(100)
        made.close()
        recorder.tick(100)
    assert sums(recorder) == {"outer": 1, "load": 6, "around": 200}


def test_a_generator_that_catches_and_goes_on(recorder: FakeRecorder) -> None:
    def stubborn() -> Generator[int, Any]:
        with profile.operation("load"):
            try:
                recorder.tick(1)
                yield 0
            except KeyError:
                recorder.tick(2)
                yield 1
            recorder.tick(4)

    made = stubborn()
    next(made)
    recorder.tick(100)
    assert made.throw(KeyError()) == 1
    recorder.tick(100)
    assert list(made) == []
    recorder.tick(100)
    assert sums(recorder) == {"load": 7, "": 300}


def test_a_generator_that_raises(recorder: FakeRecorder) -> None:
    def failing() -> Iterator[int]:
        with profile.operation("load"):
            recorder.tick(1)
            yield 0
            recorder.tick(2)
            raise KeyError

    def consume() -> None:
        for _ in failing():
            recorder.tick(100)

    with pytest.raises(KeyError):
        consume()
    recorder.tick(100)
    for _ in numbers(recorder, "load", 1, count=1):
        recorder.tick(100)
    assert sums(recorder) == {"load": 5, "": 300}


def test_a_generator_goes_on_in_another_thread(recorder: FakeRecorder) -> None:
    """The mark is then that thread's: 1 ns here, 1 ns there."""
    made = numbers(recorder, "load", 1, count=1)
    with profile.operation("here"):
        next(made)
        recorder.tick(100)

        def finish() -> None:
            with profile.operation("there"):
                assert next(made, None) is None
                recorder.tick(50)

        thread = threading.Thread(target=finish)
        thread.start()
        thread.join()
    recorder.stop()
    assert recorder.events(0) == [
        (0, "begin", "here"),
        (0, "begin", "load"),
        (1, "end", "load"),
        (152, "end", "here"),
    ]
    assert recorder.events(1)[:4] == [
        (101, "begin", "there"),
        (101, "begin", "load"),
        (102, "end", "load"),
        (152, "end", "there"),
    ]


def test_a_context_manager_covers_its_block(recorder: FakeRecorder) -> None:
    @contextlib.contextmanager
    def covering() -> Iterator[None]:
        with profile.operation("block"):
            yield

    with covering():
        recorder.tick(100)
    for _ in numbers(recorder, "load", 1):
        with covering():
            recorder.tick(100)
    with contextlib.suppress(KeyError), covering():
        recorder.tick(100)
        raise KeyError
    recorder.tick(1)
    assert sums(recorder) == {"block": 500, "load": 4, "": 1}


def test_a_generator_without_marks_is_nothing(recorder: FakeRecorder) -> None:
    def plain() -> Iterator[int]:
        with contextlib.suppress(KeyError):
            yield from range(3)

    with profile.operation("around"):
        for _ in plain():
            recorder.tick(100)
    assert sums(recorder) == {"around": 300}


def test_what_happens_while_nothing_records_is_forgotten(recorder: FakeRecorder) -> None:
    """It leaves its mark in the pause: nothing of it may come back."""

    def pausing() -> Iterator[int]:
        with profile.operation("load"):
            recorder.tick(1)
            yield 0
        yield 1
        recorder.tick(2)

    made = pausing()
    next(made)
    _native.set_active(0)
    next(made)
    recorder.tick(1000)
    _native.set_active(1)
    with profile.operation("around"):
        assert list(made) == []
        recorder.tick(100)
    assert sums(recorder) == {"load": 1, "around": 102, "": 1000}


def test_a_mark_that_a_function_begins_for_its_generator(recorder: FakeRecorder) -> None:
    """The generator holds it, whoever entered it."""

    def begin(stack: contextlib.ExitStack) -> None:
        stack.enter_context(profile.operation("load"))

    def helped() -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            begin(stack)
            recorder.tick(1)
            yield 0
            recorder.tick(2)

    for _ in helped():
        recorder.tick(100)
    assert sums(recorder) == {"load": 3, "": 100}


@contextlib.contextmanager
def block(name: str) -> Iterator[None]:
    with profile.operation(name):
        yield


def test_a_mark_of_a_context_manager_belongs_to_the_generator_around(
    recorder: FakeRecorder,
) -> None:
    """The manager's own generator covers its block, which is a generator's: that one holds it."""

    def around() -> Iterator[int]:
        with block("block"):
            recorder.tick(1)
            with profile.operation("in"), block("deep"):
                recorder.tick(10)
                yield 0
            recorder.tick(2)
            yield 1
            recorder.tick(4)

    for _ in around():
        recorder.tick(100)
    assert sums(recorder) == {"block": 7, "deep": 10, "": 200}


def test_a_new_generator_takes_over_nothing(recorder: FakeRecorder) -> None:
    """At the address of one that is gone while it held a mark, and of the same code."""

    def once(marks: bool) -> Iterator[int]:
        with profile.operation("load") if marks else contextlib.nullcontext():
            yield 0
            recorder.tick(1)
            yield 1

    for _ in range(3):
        made = once(True)
        next(made)
        del made
        gc.collect()
        for _ in once(False):
            recorder.tick(100)
    assert sums(recorder) == {"": 603}


def test_two_sessions_within_one_generator(fake_recorder: Callable[..., FakeRecorder]) -> None:
    """What a session saw of it counts for no other."""
    if not TELLS:
        pytest.skip("Python 3.11 does not tell what suspends")
    recorder: FakeRecorder

    def work() -> Iterator[int]:
        for _ in range(2):
            with profile.operation("load"):
                recorder.tick(1)
                yield 0

    made = work()
    for _ in range(2):
        generators = Generators()
        assert generators.attach() == ""
        recorder = fake_recorder()
        with profile.operation("around"):
            next(made)
            recorder.tick(100)
        assert sums(recorder) == {"load": 1, "around": 100}
        generators.detach()


def test_who_has_the_id_next_is_told_of_nothing(recorder: FakeRecorder) -> None:
    del recorder
    generators = Generators()
    assert generators.attach() == ""  # the other id: the fixture's has the first
    list(once_marked())
    code = once_marked.__code__
    assert MONITORING.get_local_events(TOOL_IDS[1], code) != 0
    generators.detach()
    MONITORING.use_tool_id(TOOL_IDS[1], "another")
    try:
        assert MONITORING.get_local_events(TOOL_IDS[1], code) == 0
    finally:
        MONITORING.free_tool_id(TOOL_IDS[1])


def once_marked() -> Iterator[int]:
    with profile.operation("load"):
        yield 0


def test_a_generator_that_went_on_before_anybody_watched(
    fake_recorder: Callable[..., FakeRecorder],
) -> None:
    if not TELLS:
        pytest.skip("Python 3.11 does not tell what suspends")
    recorder: FakeRecorder

    def early() -> Iterator[int]:
        yield 0
        with profile.operation("load"):
            recorder.tick(1)
            yield 1
            recorder.tick(2)

    made = early()
    next(made)
    generators = Generators()
    assert generators.attach() == ""
    try:
        recorder = fake_recorder()
        for _ in made:
            recorder.tick(100)
        assert sums(recorder) == {"load": 3, "": 100}
    finally:
        generators.detach()


def test_a_coroutine_is_not_taken_for_a_generator(recorder: FakeRecorder) -> None:
    """Its marks are the event loop's to hold: `record.tasks` knows who suspends it."""

    @types.coroutine
    def suspend() -> Iterator[int]:
        yield 0

    async def work() -> None:
        with profile.operation("work"):
            recorder.tick(1)
            await suspend()

    made = work()
    made.send(None)
    recorder.tick(100)
    with pytest.raises(StopIteration):
        made.send(None)
    assert sums(recorder) == {"work": 101}


def instructions(function: Callable[..., object]) -> list[str]:
    """As the interpreter has rewritten them for itself."""
    return [each.opname for each in dis.get_instructions(function, adaptive=True)]


def test_other_code_keeps_its_fast_instructions(recorder: FakeRecorder) -> None:
    """Python 3.12 takes them from whatever is told of, for good."""

    def loop(n: int = 200) -> int:
        total = i = 0
        while i < n:
            total += i & 3
            i += 1
        return total

    for _ in range(20):
        loop()
    before = instructions(loop)
    for _ in numbers(recorder, "load", 1):
        with profile.operation("use"):
            loop()
    loop()
    assert instructions(loop) == before


def test_generators_are_as_they_were_afterwards() -> None:
    def one() -> Iterator[int]:
        with contextlib.suppress(KeyError):
            yield 1

    before = {name: getattr(type(one()), name) for name in ("__next__", "send", "throw", "close")}
    generators = Generators()
    assert generators.attach() == ""
    assert list(one()) == [1]
    generators.detach()
    assert {name: getattr(type(one()), name) for name in before} == before
    assert list(one()) == [1]
    if TELLS:
        assert [MONITORING.get_tool(tool) for tool in TOOL_IDS] == [None, None]


@pytest.mark.skipif(TELLS, reason="of Python 3.11")
def test_where_nobody_tells_a_mark_covers_the_consumer(
    fake_recorder: Callable[..., FakeRecorder],
) -> None:
    """3 values and the end, 4 times 1 ns, and the consumer's 3 times 100."""
    recorder = fake_recorder()
    for _ in numbers(recorder, "load", 1):
        recorder.tick(100)
    assert sums(recorder) == {"load": 304}


@ONLY_WHERE_TOLD
def test_who_holds_both_tool_ids_is_named() -> None:
    for tool in TOOL_IDS:
        MONITORING.use_tool_id(tool, f"tool {tool}")
    try:
        assert "held by 'tool 4' and 'tool 3'" in Generators().attach()
    finally:
        for tool in TOOL_IDS:
            MONITORING.free_tool_id(tool)
