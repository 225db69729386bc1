"""Open and close the windows in which the GPU is observed, from a thread of their own.

Nothing here initializes CUDA: windows begin once the program has. Each leaves a line in
`gpu.jsonl`, with its file, or with the reason why there is none. After a collector has refused the
CPU part goes on alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from redline.profile import layout
from redline.profile.gpu.collector import CannotCollectError, Collector

POLL_S = 0.25
DRIVER_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

__all__ = ["GpuWindows", "device_present"]


def device_present() -> bool:
    """Whether this machine has a GPU's driver at all."""
    return any(Path(file).exists() for file in DRIVER_FILES)


def program_uses_device() -> bool:
    """Whether the program has initialized CUDA; does not do so itself."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized()


class GpuWindows:
    """The windows of one process.

    Args:
        directory: of the process's files.
        collector: what records.
        window_s: how long a window is.
        every_s: from the begin of one to the begin of the next.
        mark: entered while a window is closed, which takes a while, so that this time is not
            billed to the program's operations.
        in_use: whether the program uses a device by now.
    """

    def __init__(
        self,
        directory: Path,
        collector: Collector,
        *,
        window_s: float,
        every_s: float,
        mark: AbstractContextManager[Any],
        in_use: Callable[[], bool] = program_uses_device,
    ) -> None:
        self._directory, self._collector, self._mark = directory, collector, mark
        self._window_s, self._every_s, self._in_use = window_s, every_s, in_use
        self._over = threading.Event()
        self._count = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once the program uses a device; after `stop` again."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run, name="redline-profile-gpu", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Open no more windows, and close the open one soon."""
        self._over.set()

    def stop(self) -> None:
        """Close the open window, if any, and wait until that is done."""
        self._over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._in_use():
            if self._over.wait(POLL_S):
                self._note(reason="the program did not use a GPU")
                return
        try:
            while not self._over.is_set():
                began_s = time.monotonic()
                self._window()
                self._over.wait(max(0.0, began_s + self._every_s - time.monotonic()))
        except CannotCollectError as error:
            self._note(reason=str(error))
        except Exception as error:  # noqa: BLE001  (the program must run, whatever this meets)
            self._note(reason=f"{type(error).__name__}: {error}")

    def _window(self) -> None:
        file = f"gpu-{self._count:05d}.json"
        self._collector.start()
        begin_ns, begin_unix_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.time_ns()
        self._over.wait(self._window_s)
        end_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        with self._mark:
            self._collector.stop(self._directory / file)
        self._count += 1
        self._note(
            file=file,
            begin_ns=begin_ns,
            end_ns=end_ns,
            unix_offset_ns=begin_unix_ns - begin_ns,
            closed_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        )

    def _note(self, **values: Any) -> None:
        with (self._directory / layout.GPU_NOTES).open("a") as file:
            file.write(json.dumps(values) + "\n")
