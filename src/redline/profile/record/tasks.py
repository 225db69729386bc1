"""Marks across `await`: a mark that a task holds open covers that task alone.

An event loop runs its tasks in turn on one thread. While one is suspended its marks would cover
what the others do. So they end when the loop's callback returns, and begin again with the next one
in the same context. Each resumption counts as one entry of the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any
from weakref import ref

from redline.profile import _native

__all__ = ["separating"]

# (The context that suspended them, ids of its open marks from the outermost in). A task that is
# started inherits the variable, and not the marks: its context is another, though it may lie where
# one lay that is gone.
_Suspended = tuple[Callable[[], Context | None], tuple[int, ...]]
_suspended: ContextVar[_Suspended] = ContextVar("redline.profile suspended marks")
_NONE: _Suspended = (lambda: None, ())


def separating(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`asyncio.Handle._run`, with each context's marks in it alone.

    Args:
        run: the method as it was.
    """

    def run_with_own_marks(handle: Any) -> Any:
        if not _native.get_active():
            return run(handle)
        context: Context = handle._context
        owner, marks = context.get(_suspended, _NONE)
        before = _native.open_marks()
        if owner() is context:
            _native.begin_marks(marks)
        else:
            marks = ()
        try:
            return run(handle)
        finally:
            left = _native.end_marks(before)
            if left or marks:
                context.run(_suspended.set, (ref(context), left))

    return run_with_own_marks
