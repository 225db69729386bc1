"""Training: settings, loops, checkpoints, logs, evaluation.

The module itself can be called, so that `redline.train("ppo", env="CartPole-v1")` works
although this room has the same name; the function is `redline.train.runs.start.train`. Nothing
heavy is imported before it is used, and torch not before its idle threads are told to sleep.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from redline.train.idle_threads import let_idle_threads_sleep

if TYPE_CHECKING:
    from redline.train.runs.run import Run


class _CallableModule(ModuleType):
    """A module that trains when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        """Train an agent; see `redline.train.runs.start.train`."""
        from redline.train.runs.start import train

        return train(*args, **kwargs)


let_idle_threads_sleep()
sys.modules[__name__].__class__ = _CallableModule
