"""What a program says about itself: operations, phases, steps, progress, its name and metadata.

A mark costs about 100 ns while nothing records, the `with` included, and never touches the GPU.
Without the C extension the marks do nothing; only starting a session needs it.

| mark | says | scope |
|---|---|---|
| `operation(name)` | what this thread is doing; nested, the innermost wins | the thread |
| `phase(name)` | which part of the run this is | the process |
| `step()` | one step of the program is done | the process |
| `progress(done, total)` | how much of its work is done | the process |
| `process_name(name)` | what it is called in reports | the process |
| `metadata(**values)` | a fact about the run, kept with the session | the process |
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from redline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER = "other"  # the time in no operation

__all__ = [
    "OTHER",
    "Mark",
    "decorate",
    "metadata",
    "operation",
    "operation_times",
    "phase",
    "process_name",
    "progress",
    "reduced",
    "step",
    "unwrapped",
]

_metadata: dict[str, Any] = {}
_listener: Callable[[str, dict[str, Any]], None] | None = None
_name: str | None = None  # what this process calls itself

try:
    from redline.profile import _native
    from redline.profile._native import (
        Mark,  # pyright: ignore[reportAssignmentType]  (declared below for where it is missing)
        operation,
        phase,
        step,
    )
except ImportError:
    _native = None

    class Mark:
        """A mark without the extension: does nothing, as cheaply as Python can."""

        __slots__ = ("name",)

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            return None

        def __exit__(self, *exc_info: object) -> None:
            return None

        def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
            """Return the function as it is."""
            return function

    _idle: dict[str, Mark] = {}

    def _mark(name: Any) -> Mark:
        mark = _idle.get(name)
        if mark is None:
            if not isinstance(name, str):
                raise TypeError(
                    f"the name of a mark must be a str, not {type(name).__name__}: "
                    'pass a short constant string such as "inference"'
                ) from None
            mark = _idle[name] = Mark(name)
        return mark

    operation = phase = _mark

    def step() -> None:
        """Count one step of the program."""


def operation_times() -> dict[str, int]:
    """How long this thread was in each operation, ns, since it first asked while recording.

    The innermost operation counts; `OTHER` is the time in none. Keeping the totals costs each
    mark some nanoseconds from the first question on. Pauses of the recording are not counted.

    Returns:
        Empty while nothing records.
    """
    if _native is None or not _native.get_active():
        return {}
    times = {OTHER: 0}
    tallies = _native.tallies()
    names = {0: OTHER} | {row[0]: row[2] for row in _native.names()}
    for number, (time_ns, _) in tallies.items():
        if time_ns:
            name = names[number]
            times[name] = times.get(name, 0) + time_ns
    return times


def metadata(**values: Any) -> None:
    """Attach facts about the run to the session, now or when one starts.

    Args:
        **values: anything JSON can hold; other objects are kept as their `repr`.
    """
    _metadata.update(values)
    if _listener is not None:
        _listener("metadata", {"values": values})


def process_name(name: str) -> None:
    """Name this process in reports, now or when a session starts.

    A process that is forked from it has its own name.

    Args:
        name: a short text, such as "learner".

    Raises:
        ConfigError: if it is no text, or empty.
    """
    global _name
    if not name or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"the name of a process must be a text, not {name!r}. Give a short one such as "
            '"learner"'
        )
    _name = name
    if _listener is not None:
        _listener("name", {"name": name})


def progress(done: float, total: float) -> None:
    """Say how much of its work the program has done; call it as often as you like.

    Reports show the percentage, how fast it grew while the session recorded, and how long the whole
    would take at that speed.

    Args:
        done: so far, in any unit: env_steps, updates, seconds.
        total: when all is done, in the same unit; more than 0.

    Raises:
        ConfigError: if a session is open and these are no such numbers.
    """
    if _listener is None:
        return
    if not (_is_number(done) and _is_number(total) and done >= 0 and total > 0):
        raise ConfigError(
            f"progress({done!r}, {total!r}) is none: give what is done, 0 or more, and the total, "
            "more than 0, as numbers"
        )
    _listener("progress", {"done": float(done), "total": float(total)})


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False


def known_metadata() -> dict[str, Any]:
    """All facts given so far in this process."""
    return dict(_metadata)


def known_name() -> str | None:
    """What this process has called itself."""
    return _name


def _forget_name() -> None:
    global _name
    _name = None


os.register_at_fork(after_in_child=_forget_name)


def listen(listener: Callable[[str, dict[str, Any]], None] | None) -> None:
    """Call `listener` with what is said from now on; None ends that.

    Args:
        listener: takes `metadata`, `name` or `progress`, and its values.
    """
    global _listener
    _listener = listener


def decorate(mark: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """What a mark does as a decorator: each call of `function` is inside the mark.

    A coroutine function is inside from its first step to its last, waits included. A generator
    function is refused: a `with` in its body says which part of it is meant.

    Raises:
        TypeError: if `function` is a generator function or is not callable.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{mark!r} cannot decorate the generator function {function.__qualname__}: "
            f"write `with {mark!r}:` around the part of its body that is meant, or mark the body "
            "of the loop that consumes it"
        )
    if not callable(function):
        raise TypeError(f"{mark!r} can decorate a callable only, not {function!r}")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def marked_coroutine(*args: Any, **kwargs: Any) -> Any:
            with mark:
                return await function(*args, **kwargs)

        return marked_coroutine

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with mark:
            return function(*args, **kwargs)

    return marked


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """How a timed wrapper travels by pickle where no name leads to it: as the callable it wraps."""
    return function


_CLOUDPICKLES = ("cloudpickle.cloudpickle", "ray.cloudpickle.cloudpickle")


def _goes_by_value(module: str) -> bool:
    """Whether cloudpickle, or Ray's copy of it, sends what is in a module as code."""
    if module == "__main__":
        return True
    parts = module.split(".")
    packages = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    copies: list[Any] = [sys.modules.get(name) for name in _CLOUDPICKLES]
    return any(
        not packages.isdisjoint(copy.list_registry_pickle_by_value())
        for copy in copies
        if hasattr(copy, "list_registry_pickle_by_value")
    )


def reduced(wrapper: Any, function: Callable[..., Any]) -> Any:
    """What `__reduce__` of a timed wrapper returns: its qualified name where that leads to it.

    Pickle would look up the callable by this name, find the wrapper there, and refuse. Other
    processes have another `__main__`, and need not have modules that were registered with
    cloudpickle: of these it sends the code itself.

    Args:
        wrapper: the one that is pickled.
        function: what it wraps.
    """
    module, name = (getattr(function, key, None) for key in ("__module__", "__qualname__"))
    if isinstance(module, str) and isinstance(name, str) and not _goes_by_value(module):
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is wrapper:
            return name
    return unwrapped, (function,)
