"""Calls that are simulation, and which of them complete an env step.

A reset takes no decision, and a step may be two calls: one that sends the actions, one that waits
for the answer. All of them are simulation. Two ids of this name tell them apart, so that env steps
can be counted: the begins of what completes one.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from redline.profile import _native, layout, marks

SIMULATION = "simulation"
# Methods of environments that complete no env step.
WITHOUT_STEP = frozenset(
    {
        *("reset", "reset_async", "reset_wait", "async_reset", "reset_game"),
        *("step_async", "send", "observe", "last"),
    }
)

__all__ = ["SIMULATION", "in_simulation", "in_turn"]


def in_simulation(function: Callable[..., Any], method: str) -> _native.Wrapper:
    """The method of an environment, timed as simulation.

    Args:
        function: to time.
        method: its name.
    """
    return _timed(function, completes_step=method not in WITHOUT_STEP)


def in_turn(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    """The method of an environment whose agents take turns, timed as simulation.

    Args:
        function: to time.
        method: its name.
    """
    return _Turn(function) if method == "step" else in_simulation(function, method)


def _timed(function: Callable[..., Any], *, completes_step: bool) -> _native.Wrapper:
    step = _native.intern("operation", SIMULATION)
    beside = _native.intern("operation", SIMULATION, module=layout.WITHOUT_STEP)
    number, twin = (step, beside) if completes_step else (beside, step)
    return _native.Wrapper(function, number, operation=True, twin=twin)


class _Turn:
    """The `step` of PettingZoo's AEC environments.

    `step(None)` takes an agent that has ended out of the game: no decision, so no env step.

    By pickle it travels as the method it stands for, as a `_native.Wrapper` does.

    Args:
        function: the method.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._step = _timed(function, completes_step=True)
        self._removal = _timed(function, completes_step=False)
        functools.update_wrapper(self, function)

    def __get__(self, env: Any, kind: type | None = None) -> Any:
        """Bound as a method is."""
        return self if env is None else types.MethodType(self, env)

    def __reduce__(self) -> Any:
        """The method itself, by name where that leads here."""
        return marks.reduced(self, self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Step the env, or take an agent out."""
        action = args[1] if len(args) > 1 else next(iter(kwargs.values()), ...)
        return (self._removal if action is None else self._step)(*args, **kwargs)
