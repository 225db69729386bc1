"""Marks across `yield`: a mark that a suspended generator holds covers that generator alone.

It ends as the generator yields, and begins again as it goes on, in whatever thread that is. Each
time counts as one entry of the operation. A generator that `contextlib.contextmanager` made is left
alone: its marks are meant to cover the block. So are asynchronous generators.

Where a mark begins it is looked whether a generator runs. From then on `sys.monitoring` tells,
under a tool id of its own, when generators of that code suspend and go on, and of no other code:
Python 3.12 drops its superinstructions from every function that it is to tell of, for good, which
slows a loop of local variables by some 5%. Python 3.11 has no such events. There a mark covers what
the consumer does meanwhile: to replace how all generators are resumed would slow each of them by a
fifth, with and without the probe, so that no calibration could tell.
"""

from __future__ import annotations

import contextlib
import sys
from types import CodeType
from typing import Any

from redline.profile import _native

TOOL_NAME = "redline.profile generators"
TOOL_IDS = (4, 3)  # those that Python gives no name; the first that is free

__all__ = ["Generators"]


class Generators:
    """The marks of all generators, made their own for as long as this is attached."""

    def __init__(self) -> None:
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool: int | None = None
        self._watched: list[CodeType] = []

    def attach(self) -> str:
        """From here on; returns why not, "" if nothing is in the way."""
        if self._monitoring is None:
            return ""
        free = (tool for tool in TOOL_IDS if self._monitoring.get_tool(tool) is None)
        self._tool = next(free, None)
        if self._tool is None:
            holders = " and ".join(repr(self._monitoring.get_tool(tool)) for tool in TOOL_IDS)
            return (
                "marks in generators cover what their consumers do as well: sys.monitoring's "
                f"ids {TOOL_IDS[1]} and {TOOL_IDS[0]} are held by {holders}"
            )
        self._watch(self._tool)
        manager: Any = vars(contextlib)["_GeneratorContextManager"]
        _native.hook_generators((manager.__enter__.__code__,), self._begins)
        return ""

    def detach(self) -> None:
        """Leave generators as they were."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        _native.unhook_generators()
        for event in self._callbacks():
            self._monitoring.register_callback(tool, event, None)
        self._monitoring.set_events(tool, 0)
        while self._watched:  # who has the id next is not to be told of them
            self._monitoring.set_local_events(tool, self._watched.pop(), 0)
        self._monitoring.free_tool_id(tool)

    def _watch(self, tool: int) -> None:
        self._monitoring.use_tool_id(tool, TOOL_NAME)
        for event, callback in self._callbacks().items():
            self._monitoring.register_callback(tool, event, callback)

    def _callbacks(self) -> dict[int, Any]:
        events = self._monitoring.events
        return {
            events.PY_START: _native.on_start,
            events.PY_RESUME: _native.on_resume,
            events.PY_THROW: _native.on_resume,
            events.PY_YIELD: _native.on_yield,
            events.PY_RETURN: _native.on_generator_end,
            events.PY_UNWIND: _native.on_generator_end,
        }

    def _begins(self, code: CodeType) -> None:
        """A generator of this code begins a mark, the first of any."""
        tool, events = self._tool, self._monitoring.events
        # These two are rare, and there is no telling of them for one code alone.
        everywhere = events.PY_THROW | events.PY_UNWIND
        wanted = events.PY_START | events.PY_RESUME | events.PY_YIELD | events.PY_RETURN
        try:
            if tool is not None:
                self._watched.append(code)
                self._monitoring.set_local_events(tool, code, wanted)
                if self._monitoring.get_events(tool) != everywhere:
                    self._monitoring.set_events(tool, everywhere)
        except ValueError:
            if self._tool is not None:
                raise  # else another thread has just given the id back
