"""What to record; travels to child processes as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from redline.errors import ConfigError, UnknownNameError

MODES = ("light", "full")

__all__ = ["MODES", "Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a recording.

    Raises:
        ConfigError: if a number is negative.
        UnknownNameError: if the mode is not one of `MODES`.
    """

    mode: str = "full"  # light: marks, env calls, backward and optimizers; full: native calls too
    watch: tuple[str, ...] = ()  # module:function, counted as simulator
    delay_s: float = 0.0  # seconds before recording starts
    for_s: float = 0.0  # seconds to record, 0 for all
    delay_steps: int = 0  # profile.step() calls before recording starts
    for_steps: int = 0  # steps to record, 0 for all
    memory_mb: float = 64.0  # bound of the rings of one process
    calibrate: bool = True  # measure the probe's own cost in short blocks without it

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError(
                f"there is no profile mode {self.mode!r}. Choose one of: {', '.join(MODES)}"
            )
        for name in ("delay_s", "for_s", "delay_steps", "for_steps", "memory_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is negative. Give 0 or more")

    def to_json(self) -> str:
        """As text for the environment of child processes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Back from text."""
        values = json.loads(text)
        return cls(**{**values, "watch": tuple(values["watch"])})
