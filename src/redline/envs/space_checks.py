"""Whether what environments return lies in the spaces that they declare: `--check-env`.

| mode | looked at |
|---|---|
| off | nothing |
| first | every step until each environment has ended an episode (at most `LONGEST_LOOK` steps), then one step in `INTERVAL` |
| always | every step |

Looked at are observations outside their space, action masks that allow nothing, and spaces that
have become others. Shapes and dtypes are compared in any case, as observations are written
(`spaces/layout.py`), and NaN and infinity are looked for in any case (`checks.py`).

Nothing is drawn and nothing changed. Gymnasium's own environments may leave their spaces, as some
of them do by a little (LunarLander, BipedalWalker): their users cannot mend that. A space that a
user's wrapper declares around one is the user's, but for the elements whose bounds it copies.
"""  # noqa: E501 (a row of a table)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from redline.envs.layers import own_wrappers
from redline.envs.odd_envs import may_not_leave
from redline.envs.spaces.action_mask import KEY, flat_mask
from redline.envs.spaces.layout import Label
from redline.errors import EnvDataError, EnvError

CheckEnv: TypeAlias = Literal["off", "first", "always"]
LONGEST_LOOK = 10_000  # steps of the batch
INTERVAL = 1_009  # a prime, so that no period of an environment hides what is wrong with it
_MAY_LEAVE = "gymnasium.envs."
_Look: TypeAlias = Callable[[Any], "str | None"]


class SpaceWatch:
    """Looks at what single environments return, as often as its mode says.

    Args:
        envs: stepped together, with all their wrappers.
        mode: see the table above.
        label: names environment i in messages.

    Attributes:
        is_off: whether nothing is looked at.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], mode: CheckEnv, label: Label
    ) -> None:
        self._envs, self._label = envs, label
        self._spaces = [(env.observation_space, env.action_space) for env in envs]
        with may_not_leave("reading observation_space", label(0)):
            self._outside = _look_for(envs[0])
        self._allows = _mask_reader(envs[0].action_space)
        self.is_off, self._is_forever = mode == "off", mode == "always"
        self._pending = set() if mode == "off" else set(range(len(envs)))
        self._count, self._next = 0, INTERVAL

    def is_due(self) -> bool:
        """Count one more step of the batch; whether it is to be looked at."""
        if self.is_off:
            return False
        self._count += 1
        if self._pending:
            if self._count > LONGEST_LOOK:
                self._pending.clear()
            return True
        if self._count < self._next:
            return self._is_forever
        self._next = self._count + INTERVAL
        return True

    @property
    def is_thorough(self) -> bool:
        """Whether every step is looked at now, and so every reset."""
        return bool(self._pending) or self._is_forever

    def ended(self, i: int) -> None:
        """An episode of environment i has ended."""
        self._pending.discard(i)

    def look(self, i: int, obs: Any, *, is_last: bool) -> None:
        """Look at an observation of environment i.

        Args:
            i: the environment.
            obs: as it was returned.
            is_last: whether it ends its episode: nobody acts on it then.

        Raises:
            EnvDataError: if it lies outside its space, or its mask allows no action.
            EnvError: if the environment's spaces have changed.
        """
        self._look_at_spaces(i)
        problem = None if self._outside is None else self._outside(obs)
        if problem:
            raise EnvDataError(
                f"{self._label(i)}: observation{problem}. Return what observation_space declares, "
                f"declare the right bounds, or train with --check-env off."
            )
        if not is_last and isinstance(obs, Mapping) and KEY in obs:
            problem = self._allows(obs[KEY])
            if problem:
                raise EnvDataError(
                    f"{self._label(i)}: the action mask{problem} allows no action, so that the "
                    f"policy has nothing to choose from. Allow at least one, or end the episode."
                )

    def _look_at_spaces(self, i: int) -> None:
        env = self._envs[i]
        for name, before in zip(
            ("observation_space", "action_space"), self._spaces[i], strict=True
        ):
            with may_not_leave(f"reading {name}", self._label(i)):
                now = getattr(env, name)
            if now is not before and now != before:
                raise EnvError(
                    f"{self._label(i)}: {name} was {before} and has become {now}. Networks and "
                    f"memory are made once: keep the spaces as they are at the start."
                )


def _look_for(env: gymnasium.Env[Any, Any]) -> _Look | None:
    """How observations are compared, as far as a user's environment or wrapper declares them."""
    if not type(env.unwrapped).__module__.startswith(_MAY_LEAVE):
        return outside_of(env.observation_space)
    inner = [
        layer.env.observation_space
        for layer in own_wrappers(env)
        if layer.observation_space != layer.env.observation_space
    ]
    return outside_of(env.observation_space, inner[-1]) if inner else None


def outside_of(
    space: gymnasium.Space[Any], lenient: gymnasium.Space[Any] | None = None
) -> _Look | None:
    """A function that says how a value lies outside of `space`; None: no value can.

    What has another structure or shape than the space is left to whoever writes it.

    Args:
        space: what is declared.
        lenient: one that values may leave; so may they where `space` copies its bounds.
    """
    if isinstance(space, spaces.Dict):
        return _outside_parts(space.spaces, lenient)
    if isinstance(space, spaces.Tuple):
        return _outside_parts(dict(enumerate(space.spaces)), lenient)
    bounds = _bounds(space)
    if bounds is None:
        return None
    low, high, dtype = bounds
    if isinstance(space, spaces.Box) and isinstance(lenient, spaces.Box):
        low, high = _without_copied(low, high, lenient)

    def outside(value: Any) -> str | None:
        array = np.asarray(value)
        if array.shape != low.shape or array.dtype.kind not in "buif":
            return None
        if array.dtype.kind == "f" and dtype.kind == "f":
            array = array.astype(dtype)  # 1 + 1e-12 is 1 once it is stored
        wrong = (array < low) | (array > high)
        if not wrong.any():
            return None
        first = tuple(np.argwhere(wrong)[0].tolist())
        where = f"[{', '.join(map(str, first))}]" if first else ""
        return f"{where} is {array[first]}, outside of {low[first]} to {high[first]}"

    return outside


def _without_copied(low: Any, high: Any, lenient: spaces.Box) -> tuple[Any, Any]:
    """The bounds, infinite where they are those of `lenient`, appended to or stacked."""
    if low.dtype.kind != "f" or not lenient.low.size:
        return low, high
    is_copied = (low == np.resize(lenient.low, low.shape)) & (
        high == np.resize(lenient.high, high.shape)
    )
    return np.where(is_copied, -np.inf, low), np.where(is_copied, np.inf, high)


def _outside_parts(
    parts: Mapping[Any, gymnasium.Space[Any]], lenient: gymnasium.Space[Any] | None
) -> _Look | None:
    looks = {
        key: look for key, sub in parts.items() if (look := outside_of(sub, lenient)) is not None
    }
    if not looks:
        return None

    def outside(value: Any) -> str | None:
        for key, look in looks.items():
            try:
                problem = look(value[key])
            except (KeyError, IndexError, TypeError):
                return None
            if problem:
                return f" key {key!r}{problem}"
        return None

    return outside


def _bounds(space: gymnasium.Space[Any]) -> tuple[Any, Any, np.dtype[Any]] | None:
    """The least and largest value of each element; None where the dtype has no others."""
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        if dtype.kind in "iu":
            whole = np.iinfo(dtype)
            if (space.low == whole.min).all() and (space.high == whole.max).all():
                return None
        elif np.isneginf(space.low).all() and np.isposinf(space.high).all():
            return None
        return space.low, space.high, dtype
    if isinstance(space, spaces.Discrete):
        low = np.asarray(space.start, np.int64)
        return low, low + space.n - 1, low.dtype
    if isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(space.start, np.int64)
        return low, low + np.asarray(space.nvec, np.int64) - 1, low.dtype
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        return np.zeros(shape, np.int64), np.ones(shape, np.int64), np.dtype(np.int64)
    return None


def _mask_reader(space: gymnasium.Space[Any]) -> _Look:
    """A function that says which part of a mask allows nothing; None if none does."""
    parts: list[int] = []
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.asarray(space.nvec).ravel().tolist()

    def nothing(mask: Any) -> str | None:
        allowed = flat_mask(mask)
        if len(parts) < 2 or sum(parts) != len(allowed):
            return None if allowed.any() else ""
        ends = np.cumsum(parts)
        for number, (end, size) in enumerate(zip(ends, parts, strict=True)):
            if not allowed[end - size : end].any():
                return f" of action {number}"
        return None

    def problem(mask: Any) -> str | None:
        found = nothing(mask)
        return None if found is None else found or " (all 0)"

    return problem


def require_same_spaces(
    copies: Sequence[tuple[gymnasium.Space[Any], gymnasium.Space[Any]]],
    env_id: str,
    unit: str = "environment",
) -> None:
    """Refuse copies of an environment that differ in their spaces.

    Args:
        copies: observation and action space of each copy, or of each worker's copies.
        env_id: what to call the environment in messages.
        unit: what to call a copy.

    Raises:
        EnvError: naming the first copy that differs from the first of all.
    """
    for number, own in enumerate(copies):
        for name, space, first in zip(
            ("observation_space", "action_space"), own, copies[0], strict=True
        ):
            if space != first:
                raise EnvError(
                    f"{env_id}: {name} of {unit} {number} is {space}, and that of {unit} 0 is "
                    f"{first}. Make every copy with the same spaces."
                )
