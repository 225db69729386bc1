"""What a checkpoint says of a run's progress is checked before a run goes on from it.

The parameters, the environments and the generators check what they take over themselves. Counters,
sums and lists are plain data which the loop takes over as it is: text in the place of a number
would be an error of the loop much later, far from its cause. A stranger can sign any state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from redline.errors import CorruptCheckpointError
from redline.plain_text import shown

_LARGEST = 2**53  # what a double counts exactly: 285 years at a million steps a second

_Check = Callable[[Any], bool]


def require_sound_progress(state: Mapping[str, Any]) -> None:
    """Refuse a saved state whose counters, sums or lists hold something else.

    Parts that are missing are left to who needs them: earlier versions saved fewer.

    Args:
        state: of a loop.

    Raises:
        CorruptCheckpointError: if a part is not of its kind; it names the part and its value.
    """
    for name, wanted in _PROGRESS.items():
        if isinstance(state, Mapping) and name in state:
            _require(state[name], wanted, f"state.{name}")


def require_sound_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose description of itself is not what a run writes.

    Args:
        metadata: of the checkpoint.

    Raises:
        CorruptCheckpointError: if a part is missing or not of its kind; it names the part.
    """
    for name, wanted in _METADATA.items():
        if name in metadata or name not in _OPTIONAL:
            _require(metadata.get(name), wanted, f"metadata.{name}")


def algorithm_state(state: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """What a checkpoint holds of an algorithm.

    Args:
        state: of the checkpoint.
        parts: that must be networks: name -> tensor.

    Raises:
        CorruptCheckpointError: if it is missing, or a part of another kind; it names the part.
    """
    found: Any = state.get("algorithm")
    _require(found, _is_table, "state.algorithm")
    for name in parts:
        _require(found.get(name), {_ANY: _is_tensor}, f"state.algorithm.{name}")
    return found


def _require(value: Any, wanted: Any, place: str) -> None:
    if callable(wanted):
        if not wanted(value):
            kind = (wanted.__doc__ or "").lower().rstrip(".")
            raise CorruptCheckpointError(
                f"the checkpoint's {place} is {shown(value)}, and should be {kind}. It was changed "
                f"since it was saved; use an earlier checkpoint, or the run it was copied from."
            )
        return
    _require(value, _is_list if isinstance(wanted, list) else _is_table, place)
    if isinstance(wanted, list):
        for i, item in enumerate(value):
            _require(item, wanted[0], f"{place}[{i}]")
        return
    table = cast("Mapping[str, Any]", value)
    for key, item in table.items():
        inner = wanted.get(key, wanted.get(_ANY))
        if inner is not None:
            _require(item, inner, f"{place}.{key}")


def _is_table(value: Any) -> bool:
    """A table."""
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    """A list."""
    return isinstance(value, list | tuple)


def _is_count(value: Any) -> bool:
    """A whole number from 0 on that is no larger than a run can count."""
    return isinstance(value, int) and 0 <= value <= _LARGEST


def _is_some(value: Any) -> bool:
    """A whole number from 1 on that is no larger than a run can count."""
    return _is_count(value) and value >= 1


def _is_step(value: Any) -> bool:
    """A whole number that is no larger than a run can count."""
    return isinstance(value, int) and -_LARGEST <= value <= _LARGEST


def _is_time(value: Any) -> bool:
    """A number of seconds from 0 on."""
    return isinstance(value, int | float) and 0 <= value <= _LARGEST


def _is_number(value: Any) -> bool:
    """A number that fits into a double."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= 2**1023)


def _is_part(value: Any) -> bool:
    """A number from 0 to 1."""
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_reading(value: Any) -> bool:
    """A number, or nothing."""
    return value is None or _is_number(value)


def _is_left(value: Any) -> bool:
    """A whole number from 0 on that is no larger than a run can count, or nothing."""
    return value is None or _is_count(value)


def _is_text(value: Any) -> bool:
    """Text."""
    return isinstance(value, str)


def _is_ranks(value: Any) -> bool:
    """A number of processes from 1 on."""
    return _is_count(value) and value >= 1


def _is_tensor(value: Any) -> bool:
    """A tensor of real numbers."""
    return isinstance(value, Tensor) and not value.is_complex()


_ANY = "*"
_OPTIONAL = ("ranks", "stop_reason")
_METADATA: dict[str, _Check] = {
    "algorithm": _is_text,
    "env": _is_text,
    "env_steps": _is_count,
    "frames": _is_count,
    "iteration": _is_count,
    "optimizer_steps": _is_count,
    "ranks": _is_ranks,
    "stop_reason": _is_text,
}
_PROGRESS: dict[str, Any] = {
    "counters": {
        "iteration": _is_count,
        "env_steps": _is_count,
        "wall_time_s": _is_time,
        "row_env_steps": _is_count,
        "row_wall_time_s": _is_time,
    },
    "metrics": {"totals": {_ANY: _is_number}, "count": _is_count, "counts": {_ANY: _is_some}},
    "episodes": {
        "returns": [_is_number],
        "lengths": [_is_number],
        "recent": [_is_number],
        "infos": {_ANY: [_is_number]},
    },
    "logger": {"rows": _is_count, "columns": [_is_text], "last_env_steps": _is_step},
    "last_evaluation": {_ANY: _is_reading},
    "staleness": [_is_step],
    "worker_restarts": _is_count,
    "episode_numbers": {"first": _is_tensor, "newest": _is_tensor, "ahead": _is_left},
    "learning": {
        "updates_owed": _is_part,  # whole ones are made at once
        "samples_used": _is_count,
        "samples_collected": _is_count,
    },
}
"""Each part and what it is: a check, a table of parts (`_ANY` for all others), or a list of one."""
