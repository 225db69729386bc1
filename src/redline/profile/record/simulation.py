"""Calls that are simulation, and which of them complete an env step.

A reset takes no decision, and a step may be two calls: one that sends the actions, one that waits
for the answer. All of them are simulation. Two ids of this name tell them apart, so that env steps
can be counted: the begins of what completes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redline.profile import _native, layout

SIMULATION = "simulation"
# Methods of environments that complete no env step.
WITHOUT_STEP = frozenset(
    {
        *("reset", "reset_async", "reset_wait", "async_reset", "reset_game"),
        *("step_async", "send", "observe", "last"),
    }
)

__all__ = ["SIMULATION", "in_simulation"]


def in_simulation(function: Callable[..., Any], method: str) -> _native.Wrapper:
    """The method of an environment, timed as simulation.

    Args:
        function: to time.
        method: its name.
    """
    step = _native.intern("operation", SIMULATION)
    beside = _native.intern("operation", SIMULATION, module=layout.WITHOUT_STEP)
    number, twin = (beside, step) if method in WITHOUT_STEP else (step, beside)
    return _native.Wrapper(function, number, operation=True, twin=twin)
