"""What watches the program beside the marks and the boundary: the sampler and the GPU windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.profile import marks
from redline.profile.record.options import Options

if TYPE_CHECKING:
    from redline.profile.gpu.windows import GpuWindows
    from redline.profile.record.sampler import Sampler

__all__ = ["Companions"]


class Companions:
    """Those of one process that the options ask for.

    Args:
        options: of the recording.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._directory = Path()
        self._sampler: Sampler | None = None
        self._gpu: GpuWindows | None = None
        self._in_window = False

    def open(self, directory: Path, base_ns: int) -> None:
        """Get ready; nothing is watched yet.

        Args:
            directory: of the process's files.
            base_ns: what its times count from.

        Raises:
            ProfilerConflictError: if the program handles the signal that sampling needs.
            ProfileError: if this system or interpreter cannot be sampled.
        """
        from redline.profile.record.sampler import (
            COST_PART,
            DEFAULT_COST_PART,
            DEFAULT_HZ,
            Sampler,
        )

        self._directory = directory
        if self._options.sample_hz > 0:
            self._sampler = Sampler(directory, base_ns, self._options.sample_hz, COST_PART)
        elif self._options.mode == "sample":
            self._sampler = Sampler(directory, base_ns, DEFAULT_HZ, DEFAULT_COST_PART)

    def begin(self) -> None:
        """The window begins."""
        self._in_window = True
        if self._options.mode == "full" and self._options.gpu_window_s:
            self._open_gpu()
        if self._sampler is not None:
            self._sampler.resume()

    def _open_gpu(self) -> None:
        from redline.profile.gpu.windows import GpuWindows, device_present

        if not device_present():
            return
        from redline.profile.gpu.collector import KinetoCollector

        self._gpu = GpuWindows(
            self._directory,
            KinetoCollector(),
            window_s=self._options.gpu_window_s,
            every_s=self._options.gpu_every_s,
            mark=marks.operation("gpu collector"),
        )
        self._gpu.start()

    def end(self) -> None:
        """The window ends."""
        self._in_window = False
        if self._gpu is not None:
            self._gpu.end()
        if self._sampler is not None:
            self._sampler.pause()

    def before_fork(self) -> None:
        """No thread of the sampler may exist then."""
        if self._sampler is not None:
            self._sampler.pause()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._sampler is not None and self._in_window:
            self._sampler.resume()

    def after_fork_in_child(self, directory: Path, base_ns: int) -> None:
        """Leave the parent's files, and get ready anew."""
        self._in_window = False
        self._gpu = None
        if self._sampler is not None:
            self._sampler.abandon()
            self.open(directory, base_ns)

    def stop(self) -> dict[str, Any] | None:
        """End; what the sampler did, None if there was none."""
        if self._gpu is not None:
            self._gpu.stop()
            self._gpu = None
        if self._sampler is None:
            return None
        statistics = self._sampler.stop()
        self._sampler = None
        return statistics
