"""Look at the program now and then, as a check that owes nothing to the marks and the boundary.

The work is done by a thread in C (`csrc/sampler.c`): at random intervals it interrupts the first
Python thread that does not sleep and reads off its native stack which library Python had called.
Where it would take more of a core than it may it looks less often.

What it cannot tell apart: functions given to `--watch`, which have no library of their own, and
waits inside the ML back end that put the thread to sleep; those count as waiting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redline.errors import ProfileError, ProfilerConflictError
from redline.profile import layout, levels

DEFAULT_HZ = 100.0
# Where nothing else is recorded it must not be felt; who asks for a rate gets more.
DEFAULT_COST_PART, COST_PART = 100, 20

__all__ = ["COST_PART", "DEFAULT_COST_PART", "DEFAULT_HZ", "Sampler"]


class Sampler:
    """The sampling of one process; paused at first.

    Args:
        directory: of the process's files.
        base_ns: what its times count from.
        hz: how often to look, on average.
        cost_part: it may take this part of a core, 1 / cost_part.

    Raises:
        ProfilerConflictError: if the program handles the signal that sampling needs.
        ProfileError: if this system or interpreter cannot be sampled.
    """

    def __init__(self, directory: Path, base_ns: int, hz: float, cost_part: int) -> None:
        self._native = _extension()
        packages = [(name, levels.BACKEND) for name in sorted(levels.BACKEND_PACKAGES)]
        packages += [(name, levels.SIMULATOR) for name in sorted(levels.SIMULATOR_PACKAGES)]
        path = str(directory / layout.SAMPLES_SHARD)
        try:
            self._native.start(path, base_ns, round(1e9 / hz), cost_part, packages)
        except BlockingIOError as error:
            raise ProfilerConflictError(
                f"{error}: sampling needs it. Take the handler away, or use --mode full"
            ) from error
        except (NotImplementedError, OSError) as error:
            raise ProfileError(f"cannot sample: {error}. Use --mode full") from error
        self._native.pause()

    def pause(self) -> None:
        """No thread and no signals from here on."""
        self._native.pause()

    def resume(self) -> None:
        """Sample."""
        self._native.resume()

    def abandon(self) -> None:
        """In a forked child: the samples are the parent's."""
        self._native.abandon()

    def stop(self) -> dict[str, Any]:
        """End; how often it looked, how often in vain, and the CPU time it took."""
        return self._native.stop() or {}


def _extension() -> Any:
    try:
        from redline.profile import _sampler
    except ImportError as error:
        raise ProfileError(
            "the C extension redline.profile._sampler was not built, so --mode sample cannot run. "
            "Install a C compiler and run `pip install --force-reinstall redline`"
        ) from error
    if not _sampler.supported:
        raise ProfileError("--mode sample runs on Linux only. Use --mode full")
    return _sampler
