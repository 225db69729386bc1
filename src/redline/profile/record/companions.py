"""What watches the program beside the marks and the boundary.

The sampler, the looks at the Python stack, and the GPU windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.profile import layout, marks
from redline.profile.record.options import Options

if TYPE_CHECKING:
    from redline.profile.gpu.windows import GpuWindows
    from redline.profile.record.lines import Lines
    from redline.profile.record.sampler import Sampler

LINE_MODES = ("full", "sample")  # light is to cost as little as it can

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
        self._lines: Lines | None = None
        self._absent: dict[str, dict[str, Any]] = {}
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
        if self._options.lines and self._options.mode in LINE_MODES:
            self._open_lines(directory, base_ns)

    def _open_lines(self, directory: Path, base_ns: int) -> None:
        from redline.profile.record.lines import Lines

        try:
            self._lines = Lines(directory, base_ns)
        except ImportError as error:
            self._absent["lines"] = {
                "absent": f"no Python lines: the C extension _stacks was not built ({error})"
            }

    def begin(self) -> None:
        """The window begins."""
        self._in_window = True
        if self._options.mode == "full" and self._options.gpu_window_s:
            self._open_gpu()
        self._resume()

    def _resume(self) -> None:
        for looking in (self._sampler, self._lines):
            if looking is not None:
                looking.resume()

    def _pause(self) -> None:
        for looking in (self._sampler, self._lines):
            if looking is not None:
                looking.pause()

    def _open_gpu(self) -> None:
        from redline.profile.gpu.windows import GpuWindows, device_present

        if not device_present():
            return
        if self._gpu is not None:  # of an earlier window
            self._gpu.stop()
            self._gpu.start()
            return
        from redline.profile.gpu.collector import KinetoCollector

        self._gpu = GpuWindows(
            self._directory,
            KinetoCollector(),
            window_s=self._options.gpu_window_s,
            every_s=self._options.gpu_every_s,
            mark=marks.operation(layout.GPU_COLLECTOR),
        )
        self._gpu.start()

    def end(self) -> None:
        """The window ends."""
        self._in_window = False
        if self._gpu is not None:
            self._gpu.end()
        self._pause()

    def before_fork(self) -> None:
        """No thread of theirs may exist then."""
        self._pause()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._in_window:
            self._resume()

    def after_fork_in_child(self, directory: Path, base_ns: int) -> None:
        """Leave the parent's files, and get ready anew."""
        self._in_window = False
        self._gpu = None
        for looking in (self._sampler, self._lines):
            if looking is not None:
                looking.abandon()
        self._sampler = self._lines = None
        self.open(directory, base_ns)

    def stop(self) -> dict[str, dict[str, Any]]:
        """End; what the sampler and the looks at the stack did, by name, of those there were."""
        if self._gpu is not None:
            self._gpu.stop()
            self._gpu = None
        watching = {"sampler": self._sampler, "lines": self._lines}
        self._sampler = self._lines = None
        found = {name: each.stop() for name, each in watching.items() if each is not None}
        return found | self._absent
