"""A clock that runs over the steady part of a training run, the same for every library."""

from __future__ import annotations

import json
import time
from typing import Any


class Stopwatch:
    """Times the env_steps between two marks; ends the program's training at the second.

    Args:
        warmup: env_steps before the clock starts.
        measured: env_steps on the clock, at the least.
    """

    def __init__(self, warmup: int, measured: int) -> None:
        self._warmup, self._measured = warmup, measured
        self._begin: tuple[int, float, float] | None = None
        self._end: tuple[int, float, float] | None = None

    def reached(self, env_steps: int) -> bool:
        """Note how far the run is; true once there is nothing left to measure."""
        if self._begin is None:
            if env_steps >= self._warmup:
                self._begin = (env_steps, time.perf_counter(), time.process_time())
        elif self._end is None and env_steps >= self._begin[0] + self._measured:
            self._end = (env_steps, time.perf_counter(), time.process_time())
        return self._end is not None

    def result(self) -> dict[str, Any]:
        """env_steps on the clock, wall and CPU seconds, and what follows from them.

        Raises:
            RuntimeError: if the run ended before the second mark.
        """
        if self._begin is None or self._end is None:
            raise RuntimeError(
                f"the run ended before {self._warmup} + {self._measured} env_steps: nothing was "
                f"measured. Train for longer."
            )
        steps, wall_s, cpu_s = (b - a for a, b in zip(self._begin, self._end, strict=True))
        return {
            "env_steps": steps,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "sps": steps / wall_s,
            "cpu_us_per_step": 1e6 * cpu_s / steps,
        }

    def print_result(self, **more: Any) -> None:
        """`result` and more as one line of JSON, the last one of the program's output."""
        print(json.dumps(self.result() | more), flush=True)
