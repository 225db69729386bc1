"""Whether saved attributes may be set on an environment: its own names, of their own kind.

Attributes come from a checkpoint, which may be a stranger's. One that replaces a method, a space or
a module would decide what runs. So a name must be among those that the environment's own snapshot
has, and its value must be of the kind that stands there: an array of the same dtype and shape, the
same generator, the same container. Numbers of all kinds are one kind, and so are a vector and a
tuple or list of as many numbers, because environments assign one for the other. None may stand for
any kind and any kind for None: many attributes have no value before an episode's first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from redline.errors import CorruptCheckpointError, EnvError
from redline.plain_text import shortened, shown

_NUMBER = "a number"
_CONTAINERS = ("a set", "a deque", "a dict", "a bytes", "a list")


def refuse_other_kinds(own: Mapping[str, Any], saved: Any, label: str) -> None:
    """Refuse saved attributes that the environment does not have, or of another kind.

    Args:
        own: name -> value as plain data, of the environment as it now is.
        saved: the same from a checkpoint.
        label: names the environment in messages.

    Raises:
        EnvError: naming the first such attribute.
    """
    if not isinstance(saved, Mapping):
        raise EnvError(f"{label}: the saved attributes are {_kind(saved)}: the state was altered.")
    for name, value in saved.items():
        if name not in own:
            raise EnvError(
                f"{label}: the saved state sets {shown(name)}, which this environment does not "
                "have. "
                f"Resume with the environment of the saved run; if it is, give the attribute a "
                f"value in __init__."
            )
        here, there = _kind(own[name]), _kind(value)
        if not ("None" in (here, there) or here == there or _are_rows(own[name], value)):
            raise EnvError(
                f"{label}: the saved {shown(name)} is {shortened(there)}, and here it is {here}. "
                "Resume with the environment of the saved run."
            )


def refuse_another_state(own: Any, saved: Any, label: str, skip: str) -> None:
    """Refuse what one of Redline's own environments would not have given as its state.

    Args:
        own: its state as plain data, as it now is: a dict, maybe of dicts.
        saved: the same from a checkpoint.
        label: names the environment in messages.
        skip: a part that has checks of its own.

    Raises:
        EnvError: naming the first part that lacks, is too much or of another kind.
    """
    mine, theirs = (
        {name: value for name, value in _parts(data).items() if name.split(".")[0] != skip}
        for data in (own, saved)
    )
    if lacking := sorted(mine.keys() - theirs.keys()):
        raise EnvError(
            f"{label}: the saved state lacks {lacking[0]!r}. Resume with the environment of the "
            "saved run."
        )
    refuse_other_kinds(mine, theirs, label)


def _parts(data: Any, prefix: str = "") -> dict[str, Any]:
    """The parts of a dict in its form as plain data, those of dicts in it by dotted names."""
    pairs = data.get("__dict__") if isinstance(data, dict) else None
    if not isinstance(pairs, list) or not all(_is_named(pair) for pair in pairs):
        return {prefix: data}
    found: dict[str, Any] = {}
    for name, value in pairs:
        found |= _parts(value, f"{prefix}.{name}" if prefix else name)
    return found


def _is_named(pair: Any) -> bool:
    """Whether it is a name without dots, and a value."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and "." not in pair[0]


def refuse_containers(own: Mapping[str, Any], saved: Mapping[str, Any], label: str) -> None:
    """Refuse sets and the like where an environment of Gymnasium's own has no value yet.

    Its episodes keep numbers, text, arrays and rows there, so no step would take them.

    Args:
        own: name -> value as plain data, of the environment as it now is.
        saved: the same from a checkpoint.
        label: names the environment in messages.

    Raises:
        CorruptCheckpointError: naming the first such attribute.
    """
    for name, value in saved.items():
        if own[name] is None and _kind(value) in _CONTAINERS:
            raise CorruptCheckpointError(
                f"{label}: the saved {shown(name)} is {_kind(value)}, which no episode of it "
                "holds: the state was altered. Use an earlier checkpoint."
            )


def _kind(data: Any) -> str:
    """What a value in its form as plain data is, in words."""
    if data is None:
        return "None"
    if isinstance(data, (bool, int, float)):
        return _NUMBER
    if isinstance(data, np.ndarray):
        return f"an array of {data.dtype} and shape {data.shape}"
    if not isinstance(data, dict) or not data:
        return f"a {type(data).__name__}"
    marker = str(next(iter(data)))
    if marker == "__scalar__":
        return _NUMBER
    if marker == "__array__":
        return f"an array of {np.dtype(data['dtype'])} and shape {tuple(data['shape'])}"
    if marker == "__generator__":
        return f"a generator {_generator_name(data[marker])}"
    return f"a {marker.strip('_')}"


def _are_rows(own: Any, saved: Any) -> bool:
    """Whether both are rows of numbers, of the same length."""
    lengths = {_row_length(own), _row_length(saved)}
    return len(lengths) == 1 and None not in lengths


def _row_length(data: Any) -> int | None:
    if isinstance(data, np.ndarray):
        return len(data) if data.ndim == 1 else None
    items = data.get("__tuple__") if isinstance(data, dict) else data
    if not isinstance(items, list) or any(_kind(item) != _NUMBER for item in items):
        return None
    return len(items)


def _generator_name(state: Any) -> str:
    """The bit generator's name in an encoded state, which is a list of pairs."""
    pairs = state.get("__dict__", []) if isinstance(state, dict) else []
    return next((str(value) for key, value in pairs if key == "bit_generator"), "without a name")
