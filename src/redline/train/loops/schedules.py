"""Schedules of hyperparameters in global env_steps, never in a process's own."""

from __future__ import annotations

import functools
from typing import Any


def scheduled(kind: str, initial: float, env_steps: int, total_env_steps: int) -> float:
    """The value of a schedule after `env_steps`.

    Args:
        kind: "constant", or "linear": initial at 0, zero at total_env_steps.
        initial: value at the start.
        env_steps: taken so far, summed over environments and processes.
        total_env_steps: length of the run.
    """
    if kind == "constant":
        return initial
    return initial * max(0.0, 1.0 - env_steps / total_env_steps)


@functools.cache
def _scheduled_names(config_type: type) -> tuple[str, ...]:
    """Every field `x` of a config that has a field `x_schedule`."""
    fields = config_type.__dataclass_fields__  # type: ignore[attr-defined]
    return tuple(name for name in fields if f"{name}_schedule" in fields)


def are_constant(config: Any) -> bool:
    """Whether no field of a config changes in the course of a run."""
    names = _scheduled_names(type(config))
    return all(getattr(config, f"{name}_schedule") == "constant" for name in names)


def scheduled_hyperparameters(
    config: Any, env_steps: int, total_env_steps: int
) -> dict[str, float]:
    """Present value of every field `x` of a config that has a field `x_schedule`."""
    return {
        name: scheduled(
            getattr(config, f"{name}_schedule"),
            getattr(config, name),
            env_steps,
            total_env_steps,
        )
        for name in _scheduled_names(type(config))
    }
