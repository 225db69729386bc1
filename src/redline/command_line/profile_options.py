"""The options of `redline train` that record where its time goes. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redline.errors import ConfigError

ALONE = {"profile": "full"}
"""Option -> its value where it stands alone."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Record where the time goes, and write a report into RUN_DIR/profile."""

    profile: str | None = None
    """Record where the time goes: light, full or sample. Alone: full."""
    profile_sample_hz: float | None = None
    """Samples per second, in any mode."""
    profile_gpu_window_s: float | None = None
    """With full: seconds of GPU activity that are recorded at a time."""
    profile_gpu_every_s: float | None = None
    """With full: seconds from one such window to the next."""

    def recording(self) -> Callable[..., Any] | None:
        """What records a training run; None: nothing is to be recorded.

        Raises:
            UnknownNameError: if there is no such mode.
            ConfigError: if an option is wrong, or is given without `--profile`.
        """
        names = ("sample_hz", "gpu_window_s", "gpu_every_s")
        values = {name: getattr(self, f"profile_{name}") for name in names}
        given = {name: value for name, value in values.items() if value is not None}
        if self.profile is None:
            for name in given:
                raise ConfigError(
                    f"--profile-{name.replace('_', '-')} is for profiled runs. Give --profile as "
                    f"well"
                )
            return None
        from redline.recorded_training import recording

        return recording(self.profile, **given)
