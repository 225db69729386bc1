"""What to record; travels to child processes as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from redline.errors import ConfigError, UnknownNameError

MODES = ("light", "full", "sample")
MAX_SAMPLE_HZ = 10_000.0
_MOST_EVENTS_PER_S = 300_000.0
_GPU_WINDOWS_S = (1.0, 20.0)

__all__ = ["MODES", "Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a recording.

    Raises:
        ConfigError: if a number is negative, not finite, or too large; if windows would overlap or
            never end; if what to watch is no function's name; if an option has no effect in the
            mode.
        UnknownNameError: if the mode is not one of `MODES`.
    """

    # light: marks, env calls, backward and optimizers; full: native calls, too;
    # sample: those of light, and the sampler
    mode: str = "full"
    watch: tuple[str, ...] = ()  # module:function, counted as simulator
    delay_s: float = 0.0  # seconds before recording starts
    for_s: float = 0.0  # seconds to record, 0 for all
    delay_steps: int = 0  # profile.step() calls before recording starts
    for_steps: int = 0  # steps to record, 0 for all
    every_s: float = 0.0  # from the begin of one window to that of the next; 0: there is one
    every_steps: int = 0  # the same in steps
    repeat: int = 0  # windows, 0 for any number
    exit_after_window: bool = False  # end the program after the last window
    memory_mb: float = 64.0  # bound of the rings of one process
    sample_hz: float = 0.0  # sample in any mode; 0: in mode sample only, at its own rate
    gpu_window_s: float = _GPU_WINDOWS_S[0]  # of GPU observation in mode full, 0 for none
    gpu_every_s: float = _GPU_WINDOWS_S[1]  # from the begin of one to the begin of the next
    lines: bool = True  # look at the Python stack 100 times a second, in modes full and sample
    max_events_per_s: float = (
        _MOST_EVENTS_PER_S  # on average, of native calls in full mode; 0: any number
    )
    counters: bool = False  # of the processor and the kernel, read whenever the operation changes
    calibrate: bool = True  # measure the probe's own cost in short blocks without it

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError(
                f"there is no profile mode {self.mode!r}. Choose one of: {', '.join(MODES)}"
            )
        for target in self.watch:
            module, _, function = target.partition(":")
            if not module or not function:
                raise ConfigError(
                    f"--watch {target!r} names no function. Give module:function or "
                    "module:Class.method, for example mujoco:mj_step"
                )
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                raise ConfigError(f"{name}={value} is not finite. Give a number of 0 or more")
            if value < 0:
                raise ConfigError(f"{name}={value} is negative. Give 0 or more")
        if self.sample_hz > MAX_SAMPLE_HZ:
            raise ConfigError(
                f"sample_hz={self.sample_hz:g} is more than the sampler can do. Give at most "
                f"{MAX_SAMPLE_HZ:g}; 100 to 400 are plenty"
            )
        if self.gpu_every_s < self.gpu_window_s:
            raise ConfigError(
                f"gpu_window_s={self.gpu_window_s:g} does not fit into gpu_every_s="
                f"{self.gpu_every_s:g}: windows would overlap. Give shorter windows, or longer "
                "times from one to the next"
            )

        self._check_windows()
        self._check_mode()

    def _check_mode(self) -> None:
        """Refuse what has no effect in this mode."""
        if self.mode == "light" and not self.lines:
            raise ConfigError(
                "mode light looks at no Python lines, so there are none to leave out. Leave out "
                "--no-lines (lines=False)"
            )
        if self.mode != "full" and self.max_events_per_s != _MOST_EVENTS_PER_S:
            raise ConfigError(
                f"max_events_per_s={self.max_events_per_s:g} limits native calls, which mode "
                f"{self.mode} does not observe. Leave it out, or record in mode full"
            )
        if self.mode != "full" and not self.calibrate:
            raise ConfigError(
                f"mode {self.mode} has no blocks without the probe, so there are none to leave "
                "out. Leave out --no-calibration (calibrate=False), or record in mode full"
            )
        if not self.calibrate and self.max_events_per_s not in (0, _MOST_EVENTS_PER_S):
            raise ConfigError(
                f"max_events_per_s={self.max_events_per_s:g} limits nothing without "
                "calibration, between whose cycles the probe would rest. Leave it out, or "
                "leave out --no-calibration (calibrate=False)"
            )
        windows = (self.gpu_window_s, self.gpu_every_s)
        if self.mode != "full" and self.gpu_window_s and windows != _GPU_WINDOWS_S:
            raise ConfigError(
                f"gpu_window_s={self.gpu_window_s:g} and gpu_every_s={self.gpu_every_s:g} are "
                f"times of the GPU's windows, which mode {self.mode} has none of. Leave them "
                "out, or record in mode full"
            )

    @property
    def repeats(self) -> bool:
        """Whether there may be more windows than one."""
        return self.every_s > 0 or self.every_steps > 0

    def _check_windows(self) -> None:
        has_length = self.for_s > 0 or self.for_steps > 0
        if self.repeats and not has_length:
            raise ConfigError(
                f"every_s={self.every_s:g}, every_steps={self.every_steps}: windows that never end "
                "cannot repeat. Give for_s or for_steps, the length of one"
            )
        if self.repeat > 1 and not self.repeats:
            raise ConfigError(
                f"repeat={self.repeat} does not say when. Give every_s or every_steps, from the "
                "begin of one window to the begin of the next"
            )
        for unit in ("s", "steps"):
            length, every = getattr(self, f"for_{unit}"), getattr(self, f"every_{unit}")
            if 0 < every <= length:
                raise ConfigError(
                    f"for_{unit}={length:g} leaves nothing of every_{unit}={every:g} unrecorded. "
                    "Give shorter windows, or record all"
                )
        if self.exit_after_window and not (has_length and (self.repeat or not self.repeats)):
            raise ConfigError(
                "exit_after_window needs a last window. Give for_s or for_steps, and repeat if "
                "there are several windows"
            )

    def to_json(self) -> str:
        """As text for the environment of child processes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Back from text."""
        values: dict[str, Any] = json.loads(text)
        values["watch"] = tuple(values["watch"])
        return cls(**values)
