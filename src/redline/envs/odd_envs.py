"""Environments that do not keep to Gymnasium's interface: one sentence instead of a traceback.

Older interfaces give four values from `step`, or an observation alone from `reset`. What `reset`
gives is always looked at; what `step` gives until the first episode has ended, because a look costs
about as much as the rest of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from redline.errors import EnvDataError, EnvError, EnvExitError

LEAVING = (StopIteration, SystemExit, GeneratorExit)
"""What an environment may raise that would end the run as if it were complete."""
LARGEST_REWARD = float(np.finfo(np.float32).max)
_STEP = "(observation, reward, terminated, truncated, info)"


def reset(env: gymnasium.Env[Any, Any], seed: int | None, label: str) -> tuple[Any, Any]:
    """Reset an environment.

    Args:
        env: with all its wrappers.
        seed: of its generator; None leaves that as it is.
        label: what to call the environment in messages.

    Returns:
        (observation, info).

    Raises:
        EnvError: if it takes no seed.
        EnvExitError: if it exits.
        EnvDataError: if it returns something else.
    """
    try:
        outcome = env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise EnvError(
            f"{label}: reset() does not take what Gymnasium gives it ({error}). Declare it as "
            f"reset(self, *, seed=None, options=None), and begin with super().reset(seed=seed)."
        ) from error
    except LEAVING as error:
        raise left(error, "reset", label) from error
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        raise EnvDataError(
            f"{label}: reset() returned {_described(outcome)}. Return (observation, info), as "
            f"Gymnasium's interface says; an older environment needs a wrapper."
        )
    if not isinstance(outcome[1], Mapping):
        raise EnvDataError(
            f"{label}: the info that reset() returned is {outcome[1]!r}. Return a dict, {{}} if "
            f"there is nothing to say."
        )
    return outcome


@contextlib.contextmanager
def may_not_leave(method: str, label: str) -> Iterator[None]:
    """Refuse that an environment's method ends by StopIteration or SystemExit.

    Raises:
        EnvExitError: if it does.
    """
    try:
        yield
    except LEAVING as error:
        raise left(error, method, label) from error


def require_distinct(envs: Sequence[gymnasium.Env[Any, Any]], label: str) -> None:
    """Refuse one environment in place of several: each would step and reset the others.

    Raises:
        EnvError: naming the first two that are one.
    """
    seen: dict[int, int] = {}
    for number, env in enumerate(envs):
        first = seen.setdefault(id(env.unwrapped), number)
        if first != number:
            raise EnvError(
                f"{label}: the callable gave the same environment as number {first} and as number "
                f"{number}, so that they would step each other. Make a new one in each call, such "
                f"as `lambda: MyEnv()`."
            )


def left(error: BaseException, method: str, label: str) -> EnvExitError:
    """The error to raise where an environment's method ended by StopIteration or SystemExit."""
    said, method = repr(error), method if " " in method else f"{method}()"
    return EnvExitError(
        f"{label}: {method} raised {said}, which would have ended the run as if it were "
        f"complete. Raise an error of another kind, or end the episode."
    )


def check_outcome(outcome: Any, label: str) -> None:
    """Refuse what is not an outcome of `step`.

    Args:
        outcome: what the method returned.
        label: what to call the environment in messages.

    Raises:
        EnvDataError: naming what is wrong with it, and the fix.
    """
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise EnvDataError(
            f"{label}: step() returned {_described(outcome)}. Return {_STEP}, as Gymnasium's "
            f"interface says; an older environment needs a wrapper."
        )
    _, reward, terminated, truncated, info = outcome
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not _is_flag(value):
            raise EnvDataError(
                f"{label}: {name} is {value!r} of type {type(value).__name__}. step() must return "
                f"one bool for it."
            )
    if not isinstance(info, Mapping):
        raise EnvDataError(
            f"{label}: the info that step() returned is {info!r}. Return a dict, {{}} if there is "
            f"nothing to say."
        )
    if not _is_number(reward):
        raise EnvDataError(
            f"{label}: reward is {reward!r} of type {type(reward).__name__}. step() must return "
            f"one plain number for it."
        )
    try:
        size = abs(float(np.asarray(reward, dtype=np.float64).reshape(())))
    except OverflowError:
        raise EnvDataError(
            f"{label}: the reward is a whole number of hundreds of digits. Scale rewards in the "
            f"environment or a wrapper."
        ) from None
    except (TypeError, ValueError) as error:
        raise EnvDataError(
            f"{label}: reward is {reward!r} of type {type(reward).__name__} ({error}). step() must "
            f"return one plain number for it."
        ) from error
    if np.isfinite(size) and size > LARGEST_REWARD:
        raise EnvDataError(f"{label}: {too_large_reward(size)}")


def too_large_reward(size: float) -> str:
    """What to say of a reward that is finite and yet too large."""
    return (
        f"a reward of size {size:g} does not fit into float32, whose largest number is "
        f"{LARGEST_REWARD:.3g}. Scale rewards in the environment or a wrapper."
    )


def _is_flag(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return True
    return getattr(value, "shape", ()) == () and _is_number(value) and bool(value in (0, 1))


def _is_number(value: Any) -> bool:
    has_one = getattr(value, "shape", ()) in ((), (1,))
    return has_one and not isinstance(value, (str, bytes)) and hasattr(value, "__float__")


def _described(outcome: Any) -> str:
    if isinstance(outcome, tuple):
        return f"a tuple of {len(outcome)}"
    return "None" if outcome is None else f"one {type(outcome).__name__}"
