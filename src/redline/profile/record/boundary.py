"""Observe the boundary between Python and native code, in all threads.

Python 3.12 and later: `sys.monitoring`, under the profiler's tool id. Python 3.11: a C profile
function in every thread. Who else holds the hook is named and not disturbed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from redline.errors import ProfilerConflictError
from redline.profile import _native, levels

TOOL_NAME = "redline.profile"


Rule = tuple[int, int, int, Any] | tuple[int, int, int, Any, int]


def _inference() -> Rule:
    """A module called with gradients off, or (forward) on; the outermost call counts."""
    for name in ("learning", "collection", "startup"):  # what `analyse.gaps` calls the rest
        _native.intern("inferred", name)
    unless = sys.modules["torch"].is_grad_enabled
    forward = _native.intern("inferred", "forward")
    return _native.intern("inferred", "inference"), levels.PYTHON, 1, unless, forward


def _compiling() -> Rule:
    return _native.intern("inferred", "compile"), levels.PYTHON, 1, None


def _worker() -> Rule:
    """A process that steps envs, or loads data, for another."""
    return _native.intern("inferred", "worker"), levels.PYTHON, 1, None


def _compiled_region() -> Rule:
    name = _native.intern("call", "(compiled region)", levels.COMPILED, "torch", sealed=True)
    return name, levels.COMPILED, 0, None


def _guards() -> Rule:
    name = _native.intern("call", "(guards and cache look-up)", levels.COMPILED, "torch")
    return name, levels.COMPILED, 0, None


# A policy's distribution is part of its forward pass, the checks of its arguments included.
DISTRIBUTIONS = tuple(
    (f"torch/distributions/{name}.py", _inference)
    for name in (
        *("bernoulli", "beta", "categorical", "independent", "multivariate_normal", "normal"),
        "transformed_distribution",
    )
)

# Python functions that begin an operation or a region: {name: ((end of the file, rule), ...)}.
CODE_RULES: dict[str, tuple[tuple[str, Callable[[], Rule]], ...]] = {
    "_wrapped_call_impl": (("torch/nn/modules/module.py", _inference),),
    **dict.fromkeys(("__init__", "sample", "rsample", "log_prob", "entropy"), DISTRIBUTIONS),
    "_compile": (("torch/_dynamo/convert_frame.py", _compiling),),
    "compile_wrapper": (("torch/_dynamo/eval_frame.py", _guards),),
    "runtime_wrapper": (("torch/_functorch/_aot_autograd/runtime_wrappers.py", _compiled_region),),
    "_worker": (
        ("stable_baselines3/common/vec_env/subproc_vec_env.py", _worker),
        ("gymnasium/vector/async_vector_env.py", _worker),
    ),
    "_async_worker": (("gymnasium/vector/async_vector_env.py", _worker),),
    "_worker_loop": (("torch/utils/data/_utils/worker.py", _worker),),
}

__all__ = ["Boundary"]


class Boundary:
    """The probe on the Python/native boundary."""

    def __init__(self) -> None:
        self._monitoring: Any = getattr(sys, "monitoring", None)

    def attach(self) -> None:
        """Take the hook and start to observe.

        Raises:
            ProfilerConflictError: if another profiler or a debugger holds it.
        """
        if sys.gettrace() is not None:
            raise ProfilerConflictError(
                f"a debugger or coverage tool traces this thread ({sys.gettrace()!r}): its cost "
                "would be measured instead of the program's. Stop it, or use --mode light"
            )
        _native.set_classifiers(self._classify_call, self._classify_type, self._classify_code)
        _native.forget_callables()
        if self._monitoring is not None:
            self._take_tool_id()
        else:
            holder = _native.profile_holder()
            if holder is not None:
                raise ProfilerConflictError(
                    f"another profiler holds the profile hook of this thread: {holder}. "
                    "Stop it (sys.setprofile(None)), or use --mode light"
                )
            threading.setprofile(_native.hook_this_thread)
        self.resume()

    def detach(self) -> None:
        """Stop observing and give the hook back, if it was taken."""
        if self._monitoring is not None:
            tool = self._monitoring.PROFILER_ID
            if self._monitoring.get_tool(tool) == TOOL_NAME:
                self.pause()
                for event in self._callbacks():
                    self._monitoring.register_callback(tool, event, None)
                self._monitoring.free_tool_id(tool)
            return
        self.pause()
        if threading.getprofile() is _native.hook_this_thread:
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]

    def resume(self) -> None:
        """Observe again, call sites found uninteresting before included."""
        if self._monitoring is not None:
            self._monitoring.set_events(self._monitoring.PROFILER_ID, sum(self._callbacks()))
            self._monitoring.restart_events()
        else:
            _native.hook_threads(True)

    def pause(self) -> None:
        """Stop to observe for a while; the hook stays taken."""
        if self._monitoring is not None:
            self._monitoring.set_events(self._monitoring.PROFILER_ID, 0)
        else:
            _native.hook_threads(False)

    def _take_tool_id(self) -> None:
        tool = self._monitoring.PROFILER_ID
        holder = self._monitoring.get_tool(tool)
        if holder is not None and holder != TOOL_NAME:
            raise ProfilerConflictError(
                f"sys.monitoring's profiler id is held by {holder!r}. Stop that profiler, or use "
                "--mode light"
            )
        debugger = self._monitoring.get_tool(self._monitoring.DEBUGGER_ID)
        if debugger is not None:
            raise ProfilerConflictError(
                f"the debugger {debugger!r} is attached through sys.monitoring: its cost would be "
                "measured instead of the program's. Stop it, or use --mode light"
            )
        if holder is None:
            self._monitoring.use_tool_id(tool, TOOL_NAME)
        for event, callback in self._callbacks().items():
            self._monitoring.register_callback(tool, event, callback)

    def _callbacks(self) -> dict[int, Any]:
        events = self._monitoring.events
        return {
            events.CALL: _native.on_call,
            events.C_RETURN: _native.on_c_return,
            events.C_RAISE: _native.on_c_return,
            events.PY_START: _native.on_py_start,
            events.PY_RETURN: _native.on_py_return,
            events.PY_UNWIND: _native.on_py_unwind,
        }

    def _classify_call(self, function: Any) -> tuple[int, int] | None:
        module, name = levels.origin_of(function)
        level = levels.level_of(module, name)
        if level == levels.PYTHON:
            return None
        return _native.intern("call", name, level, module), level

    def _classify_type(self, kind: type) -> tuple[int, int] | None:
        return (1, 0) if levels.may_be_native(kind) else None

    def _classify_code(self, code: CodeType) -> Rule | None:
        """(id, level, is operation, unless, id otherwise) of a function worth observing."""
        for path, rule in CODE_RULES.get(code.co_name, ()):
            if code.co_filename.endswith(path):
                return rule()
        return None
