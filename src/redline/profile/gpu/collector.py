"""The interface of a GPU collector, and the first one behind it: Kineto.

A collector is started and stopped on one thread of its own. It never synchronizes the device: what
still runs when a window closes is cut or lost, which is why windows are reported as windows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from redline.errors import ProfileError

__all__ = ["CannotCollectError", "Collector", "KinetoCollector"]


class CannotCollectError(ProfileError):
    """The GPU cannot be observed now; the CPU part goes on without it."""


class Collector(Protocol):
    """Records what happens on the devices between `start` and `stop`."""

    def start(self) -> None:
        """Begin.

        Raises:
            CannotCollectError: with the reason.
        """
        ...

    def stop(self, output: Path) -> None:
        """End, and write what was recorded to a file that `records.read_kineto` reads.

        Raises:
            CannotCollectError: with the reason.
        """
        ...


class KinetoCollector:
    """torch's own collector: runtime and driver calls, synchronization, kernels, copies, graphs.

    `torch.profiler.profile` would synchronize all devices when it ends and turn each event into
    Python objects; so its parts are driven here, and the file is written in C++.
    """

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        """Begin to record the devices, and nothing of the CPU's operators."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise CannotCollectError("the program has not imported torch")
        try:
            autograd, profiler = torch.autograd, torch.autograd.profiler
            if profiler.ProfilerActivity.CUDA not in autograd._supported_activities():
                raise CannotCollectError("this build of torch collects no GPU events (no CUPTI)")
            # The first knows of this thread alone, the second of all: to start beside another
            # profiler would end its trace.
            if autograd._profiler_enabled() or profiler._is_profiler_enabled:
                raise CannotCollectError("the program runs a torch profiler itself")
            self._profiler = profiler.profile(
                use_device="cuda",
                use_cpu=False,
                use_kineto=True,
                experimental_config=profiler._ExperimentalConfig(enable_cuda_sync_events=True),
            )
            self._profiler._prepare_trace()
            self._profiler._start_trace()
        except (AttributeError, TypeError, AssertionError, RuntimeError) as error:
            if self._profiler is not None:
                self._profiler = None
                _say_that_none_runs()
            raise CannotCollectError(
                f"Kineto does not start with torch {torch.__version__}: {error}. Another CUPTI "
                "user (Nsight, another profiler) may hold the device: stop it"
            ) from error

    def stop(self, output: Path) -> None:
        """End and write the trace."""
        if self._profiler is None:
            raise CannotCollectError("Kineto was not started")
        self._profiler = None
        try:
            sys.modules["torch"].autograd._disable_profiler().save(str(output))
        except (AttributeError, RuntimeError) as error:
            raise CannotCollectError(f"Kineto did not give its records: {error}") from error
        finally:
            _say_that_none_runs()


def _say_that_none_runs() -> None:
    """Take back what `_start_trace` said to all of torch: compiled programs run slower for it."""
    stopped = getattr(sys.modules["torch"].autograd.profiler, "_run_on_profiler_stop", None)
    if stopped is not None:
        stopped()
