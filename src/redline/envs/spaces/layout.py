"""How the values of Gymnasium spaces are carried in arrays [B, ...].

| space of an observation | carried as |
|---|---|
| Box | its dtype; float64 as float32 |
| Discrete, MultiDiscrete | int64, zero-based: `start` is taken off |
| MultiBinary | int8 |
| Dict | a dict |
| Tuple | a dict with the keys "0", "1", ... |

`carried_space` gives the space of what is carried, which is what a policy sees. A
single environment's own values are written by `make_writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces

from redline.errors import EnvDataError, SpaceError
from redline.nested import Array, NestedArray

Writer: TypeAlias = Callable[[int, Any], None]
Label: TypeAlias = Callable[[int], str]


def carried_space(space: Space[Any]) -> Space[Any]:
    """The space of an observation as it is carried; the module docstring has the table.

    Raises:
        SpaceError: for a space that has no array form of fixed shape.
    """
    if isinstance(space, spaces.Box):
        return _as_float32(space) if space.dtype == np.float64 else space
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.asarray(space.nvec, dtype=np.int64))
    if isinstance(space, spaces.MultiBinary):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({str(key): carried_space(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Dict({str(i): carried_space(sub) for i, sub in enumerate(space.spaces)})
    raise SpaceError(
        f"the observation space {space} has no array form of fixed shape. Redline carries Box, "
        f"Discrete, MultiDiscrete, MultiBinary, Dict and Tuple; convert it with a wrapper such "
        f"as gymnasium.wrappers.TransformObservation."
    )


def _as_float32(space: spaces.Box) -> spaces.Box:
    """The Box with float32 bounds. Bounds beyond float32 become infinite."""
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def labels(env_id: str, first_env_id: int) -> Label:
    """What to call environment i of a batch in messages.

    A function of its own: a method of whoever keeps it would be a cycle, which holds environments
    and memory until the garbage collector comes by.
    """
    return lambda index: f"{env_id}, environment {first_env_id + index}"


def offset_of(space: Space[Any]) -> Any:
    """What a space's own values have more than the carried ones: `start`, else 0."""
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    if isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
        return np.asarray(space.start, dtype=np.int64)
    return 0


def make_writer(space: Space[Any], buffer: NestedArray, label: Label, key: str = "") -> Writer:
    """A function that writes one environment's observation into row i of `buffer`.

    Args:
        space: the environment's own space.
        buffer: [B, ...] arrays of the carried space.
        label: names environment i in messages.
        key: dotted name of this part of the observation.

    Returns:
        `write(i, obs)`, which raises EnvDataError for a wrong structure, shape or dtype.
    """
    if isinstance(space, spaces.Dict):
        return _dict_writer(space, buffer, label, key)
    if isinstance(space, spaces.Tuple):
        return _tuple_writer(space, buffer, label, key)
    if not isinstance(buffer, np.ndarray):
        raise SpaceError(f"the buffer of {space} must be an array, not {type(buffer).__name__}.")
    return _leaf_writer(space, buffer, label, key)


def _dict_writer(space: spaces.Dict, buffer: NestedArray, label: Label, key: str) -> Writer:
    parts = [
        (name, make_writer(sub, buffer[str(name)], label, _join(key, str(name))))
        for name, sub in space.spaces.items()
    ]
    names = set(space.spaces)

    def write(i: int, obs: Any) -> None:
        if not isinstance(obs, Mapping) or obs.keys() != names:
            got = sorted(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
            raise EnvDataError(
                f"{label(i)}: observation{_named(key)} must be a dict with the keys "
                f"{sorted(map(str, names))}, got {got}. Return what observation_space declares."
            )
        for name, writer in parts:
            writer(i, obs[name])

    return write


def _tuple_writer(space: spaces.Tuple, buffer: NestedArray, label: Label, key: str) -> Writer:
    parts = [
        make_writer(sub, buffer[str(n)], label, _join(key, str(n)))
        for n, sub in enumerate(space.spaces)
    ]

    def write(i: int, obs: Any) -> None:
        if not isinstance(obs, (tuple, list)) or len(obs) != len(parts):
            raise EnvDataError(
                f"{label(i)}: observation{_named(key)} must be a tuple of {len(parts)} parts, got "
                f"{type(obs).__name__} of length {_length(obs)}. "
                f"Return what observation_space declares."
            )
        for part, writer in zip(obs, parts, strict=True):
            writer(i, part)

    return write


def _length(obs: Any) -> int:
    try:
        return len(obs)
    except TypeError:  # a number, or an array without axes
        return 1


def _leaf_writer(space: Space[Any], buffer: Array, label: Label, key: str) -> Writer:
    shape, dtype, offset = buffer.shape[1:], space.dtype, offset_of(space)
    has_offset = bool(np.any(offset))
    integral = np.issubdtype(buffer.dtype, np.integer) or buffer.dtype == np.bool_

    def write(i: int, obs: Any) -> None:
        # NumPy has one object per native dtype, and comparing objects is the quickest test.
        if obs.__class__ is np.ndarray and obs.dtype is dtype and obs.shape == shape:
            buffer[i] = obs - offset if has_offset else obs
            return
        value = np.asarray(obs)
        if value.shape != shape:
            raise EnvDataError(
                f"{label(i)}: observation{_named(key)} has shape {value.shape}, but the space "
                f"declares {shape}. Return that shape, or declare the right one."
            )
        if value.dtype.kind not in ("bui" if integral else "buif"):
            raise EnvDataError(
                f"{label(i)}: observation{_named(key)} has dtype {value.dtype}, but the space "
                f"declares {dtype}. Cast it in the environment, or declare the right dtype."
            )
        if not np.can_cast(value.dtype, buffer.dtype, casting="safe"):
            _check_integer_range(value, buffer.dtype, label(i), key)
        buffer[i] = value - offset if has_offset else value

    return write


def _check_integer_range(value: Array, dtype: np.dtype[Any], name: str, key: str) -> None:
    if dtype.kind not in "iu" or value.size == 0:
        return
    limits = np.iinfo(dtype)
    if int(value.min()) < limits.min or int(value.max()) > limits.max:
        raise EnvDataError(
            f"{name}: observation{_named(key)} has values from {value.min()} to {value.max()}, "
            f"which {dtype} cannot hold. Declare a wider dtype."
        )


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _named(key: str) -> str:
    return f" key {key!r}" if key else ""


def batch_to_carried(space: Space[Any], target: NestedArray, obs: Any, name: str) -> None:
    """Write a whole batch of observations, as vector environments give them.

    Args:
        space: one environment's own space.
        target: [B, ...] arrays of the carried space.
        obs: [B, ...] arrays in the space's own structure, tuples included.
        name: what to call the environments in messages.

    Raises:
        EnvDataError: for a wrong structure, shape or dtype.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, sub in parts:
            batch_to_carried(sub, target[str(key)], obs[key], f"{name}, observation key {key!r}")
        return
    value, to = np.asarray(obs), np.asarray(target)
    if value.shape != to.shape:
        raise EnvDataError(
            f"{name}: a batch of observations has shape {value.shape}, but the space declares "
            f"{to.shape}. Return that shape, or declare the right one."
        )
    if not np.can_cast(value.dtype, to.dtype, casting="same_kind"):
        raise EnvDataError(
            f"{name}: observations have dtype {value.dtype}, but the space declares {to.dtype}. "
            f"Cast them in the environment, or declare the right dtype."
        )
    if not np.can_cast(value.dtype, to.dtype, casting="safe"):
        _check_integer_range(value, to.dtype, name, "")
    offset = offset_of(space)
    np.copyto(to, value - offset if np.any(offset) else value, casting="same_kind")
