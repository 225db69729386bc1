"""Actions on their way in: batches [B, ...] checked once, then split for single environments.

A caller's actions are zero-based for Discrete and MultiDiscrete; `start` is added here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from redline.envs.spaces.layout import Label, carried_space, offset_of
from redline.errors import ActionError, SpaceError
from redline.nested import Array, NestedArray


class ActionCodec(ABC):
    """Checks batches of actions of one space and brings them to the environment's form.

    Attributes:
        space: the space of what `encode` accepts: zero-based, float32 where the
            environment's own is float64.
    """

    space: Space[Any]

    @abstractmethod
    def encode(self, action: Any, active: Array | None = None) -> NestedArray:
        """A checked copy of `action` [B, ...] in the environment's dtype, with `start` added.

        Args:
            action: [B, ...] in the structure of `space`.
            active: [B] bool; the values of idle environments are not checked. None means all.

        Raises:
            ActionError: for a wrong structure or shape, or a value out of bounds; names the
                environment, the value and the bounds.
        """

    @abstractmethod
    def zeros(self) -> NestedArray:
        """[B, ...] arrays that `encode`'s result fits into."""

    @abstractmethod
    def rows(self, native: Any) -> list[Any]:
        """The B single actions in the form in which an environment takes them."""

    def only_row(self, action: Any) -> Any:
        """`rows(encode(action))[0]` for a batch of one, in fewer calls where that is easy."""
        return self.rows(self.encode(action))[0]


def make_codec(space: Space[Any], num_envs: int, label: Label, key: str = "") -> ActionCodec:
    """The codec of `space`.

    Args:
        space: one environment's own action space.
        num_envs: B.
        label: names environment i in messages.
        key: dotted name of this part of the action.

    Raises:
        SpaceError: for a space that Redline cannot act in.
    """
    if isinstance(space, spaces.Discrete):
        return _DiscreteCodec(space, num_envs, label, key)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return _ArrayCodec(space, num_envs, label, key)
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _DictCodec(space, num_envs, label, key)
    raise SpaceError(
        f"the action space {space} is not served. Redline acts in Box, Discrete, MultiDiscrete, "
        f"MultiBinary, Dict and Tuple spaces; convert it with gymnasium.wrappers.TransformAction."
    )


_INT64 = np.dtype(np.int64)
_FEW = 32  # up to here Python's own max and min are quicker than numpy's


class _DiscreteCodec(ActionCodec):
    def __init__(self, space: spaces.Discrete, num_envs: int, label: Label, key: str) -> None:
        self.space = spaces.Discrete(int(space.n))
        self._shape, self._n, self._start = (num_envs,), int(space.n), int(space.start)
        self._label, self._key = label, key

    def encode(self, action: Any, active: Array | None = None) -> Array:
        value = np.asarray(action)
        if value.shape != self._shape or value.dtype.kind not in "iu":
            raise _misfit(value, self._shape, "integers", self._key)
        value = value.astype(np.int64)  # a copy: the caller may reuse its own
        if active is not None:
            value[~active] = 0
        if self._outside(value):
            index = int(np.flatnonzero((value < 0) | (value >= self._n))[0])
            raise ActionError(
                f"{self._label(index)}: action{_named(self._key)} is {value[index]}, outside "
                f"0 .. {self._n - 1}. Actions are zero-based, whatever the space's start is."
            )
        if self._start:
            value += self._start
        return value

    def _outside(self, value: Array) -> bool:
        if len(value) == 1:
            return not 0 <= value.item() < self._n
        if len(value) <= _FEW:
            numbers = value.tolist()
            return max(numbers) >= self._n or min(numbers) < 0
        # Read as unsigned, a negative number is a huge one: a single pass finds both ends.
        return bool(np.maximum.reduce(value.view(np.uint64)) >= self._n)

    def zeros(self) -> Array:
        return np.zeros(self._shape, dtype=np.int64)

    def rows(self, native: Any) -> list[Any]:
        return native.tolist()

    def only_row(self, action: Any) -> Any:
        if action.__class__ is np.ndarray and action.dtype is _INT64 and action.shape == (1,):
            value = action.item()
            if 0 <= value < self._n:
                return value + self._start
        return super().only_row(action)


class _ArrayCodec(ActionCodec):
    """Box, MultiDiscrete and MultiBinary."""

    def __init__(
        self,
        space: spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary,
        num_envs: int,
        label: Label,
        key: str,
    ) -> None:
        self.space = carried_space(space)
        self._shape = (num_envs, *(space.shape or ()))
        self._dtype = space.dtype
        offset = offset_of(space)
        self._start = np.asarray(offset).astype(self._dtype) if np.any(offset) else None
        self._label, self._key = label, key
        self._continuous = isinstance(space, spaces.Box) and np.issubdtype(self._dtype, np.floating)
        if isinstance(self.space, spaces.Box):
            self._low, self._high = self.space.low, self.space.high
        elif isinstance(self.space, spaces.MultiDiscrete):
            self._low, self._high = np.zeros_like(self.space.nvec), self.space.nvec - 1
        else:
            self._low, self._high = np.int8(0), np.int8(1)
        # float32 bounds may lie a rounding outside the environment's float64 ones.
        self._clip = (
            (space.low, space.high)
            if isinstance(space, spaces.Box) and self._dtype == np.float64
            else None
        )

    def encode(self, action: Any, active: Array | None = None) -> Array:
        value = np.asarray(action)
        if value.shape != self._shape or value.dtype.kind not in "biuf":
            raise _misfit(value, self._shape, "numbers", self._key)
        if value.dtype.kind == "f" and not self._continuous:
            raise _misfit(value, self._shape, "integers", self._key)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        # Written so that NaN, which compares false with everything, is refused.
        inside = (value >= self._low) & (value <= self._high)
        if active is not None:
            inside[~active] = True
        if np.count_nonzero(inside) != inside.size:  # `all` takes twice as long
            raise self._out_of_bounds(value, inside)
        native = np.array(value, dtype=self._dtype)
        if self._clip is not None:
            np.clip(native, *self._clip, out=native)
        if self._start is not None:
            native += self._start
        return native

    def _out_of_bounds(self, value: Array, inside: Array) -> ActionError:
        where = tuple(int(n) for n in np.argwhere(~inside)[0])
        low = np.broadcast_to(self._low, self._shape[1:])[where[1:]]
        high = np.broadcast_to(self._high, self._shape[1:])[where[1:]]
        component = f"[{', '.join(map(str, where[1:]))}]" if where[1:] else ""
        return ActionError(
            f"{self._label(where[0])}: action{_named(self._key)}{component} is {value[where]}, "
            f"outside [{low}, {high}]. Clip or squash actions before they reach the environment."
        )

    def zeros(self) -> Array:
        return np.zeros(self._shape, dtype=self._dtype)

    def rows(self, native: Any) -> list[Any]:
        return list(native)


class _DictCodec(ActionCodec):
    """Dict, and Tuple as a dict with the keys "0", "1", ..."""

    def __init__(
        self, space: spaces.Dict | spaces.Tuple, num_envs: int, label: Label, key: str
    ) -> None:
        self._is_tuple = isinstance(space, spaces.Tuple)
        items: Any = (
            enumerate(space.spaces) if isinstance(space, spaces.Tuple) else space.spaces.items()
        )
        self._parts = {
            name: make_codec(sub, num_envs, label, f"{key}.{name}" if key else str(name))
            for name, sub in items
        }
        self.space = spaces.Dict({str(name): part.space for name, part in self._parts.items()})
        self._key = key

    def encode(self, action: Any, active: Array | None = None) -> NestedArray:
        names = {str(name) for name in self._parts}
        if not isinstance(action, Mapping) or set(action) != names:
            got = sorted(map(str, action)) if isinstance(action, Mapping) else type(action).__name__
            raise ActionError(
                f"action{_named(self._key)} must be a dict of arrays with the keys "
                f"{sorted(names)}, got {got}."
            )
        return {
            str(name): part.encode(action[str(name)], active) for name, part in self._parts.items()
        }

    def zeros(self) -> NestedArray:
        return {str(name): part.zeros() for name, part in self._parts.items()}

    def rows(self, native: Any) -> list[Any]:
        columns = [part.rows(native[str(name)]) for name, part in self._parts.items()]
        if self._is_tuple:
            return list(zip(*columns, strict=True))
        return [dict(zip(self._parts, row, strict=True)) for row in zip(*columns, strict=True)]


def _misfit(value: Array, shape: tuple[int, ...], kind: str, key: str) -> ActionError:
    return ActionError(
        f"action{_named(key)} must be {kind} of shape {shape} (environments first), got "
        f"{value.dtype} of shape {value.shape}."
    )


def _named(key: str) -> str:
    return f" key {key!r}" if key else ""
