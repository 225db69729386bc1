"""What a run changes about its whole process: every measure, in this file.

Nothing here happens on import. A run takes these measures unless `--no-tune-process` says
otherwise, and an environment variable of the user's switches each one off alone; docs/speed.md
lists them with what they gain.

| measure | function |
|---|---|
| OpenMP's idle threads sleep after 0.2 ms | `before_torch_loads` |
| glibc keeps freed memory | `kept_memory.keep_freed_memory` |
| numpy's matrix library works with one thread | `give_numpy_one_thread` |

How many threads torch gets is no measure of this kind but a setting; see `threads.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.kept_memory import keep_freed_memory
from redline.plain_files import read_json
from redline.train.config_files import read_mapping
from redline.train.settings import RunConfig, RunSettings

_SPIN_COUNT = "GOMP_SPINCOUNT"
_SPINS = "10000"  # 0.2 ms on an AMD EPYC: longer than most gaps between two operations of an update
_NUMPY_THREADS = "OPENBLAS_NUM_THREADS"


def before_torch_loads(resume: Path | str | None = None, config: Any = None) -> bool:
    """Let OpenMP's idle threads sleep after 0.2 ms instead of 5.

    A thread of GNU's OpenMP that has finished its share spins before it sleeps: 300,000 times by
    default, which takes 5 ms on an AMD EPYC. Meanwhile it keeps its core from environments that
    step in threads of their own, such as EnvPool's. The library reads the environment once, when
    torch is loaded, so this must come first; processes started from this one inherit it.

    Args:
        resume: run directory to go on with; its settings may forbid it.
        config: what a new run begins with, as `redline.train` takes it; it may forbid it likewise.

    Returns:
        Whether the variable was set. False, and nothing is changed, if torch is loaded already, or
        if the environment holds a setting of the user's (`GOMP_SPINCOUNT`, `OMP_WAIT_POLICY`).
    """
    if "torch" in sys.modules or any(n in os.environ for n in (_SPIN_COUNT, "OMP_WAIT_POLICY")):
        return False
    if not _may_tune(config if resume is None else resume, is_run=resume is not None):
        return False
    os.environ[_SPIN_COUNT] = _SPINS
    return True


def _may_tune(source: Any, *, is_run: bool) -> bool:
    """What a run directory or given settings say; True if they say nothing."""
    # Read as plain data: to check the settings of a user's algorithm may import torch.
    try:
        if isinstance(source, RunConfig):
            return source.run.tune_process
        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            source = read_json(path / "config.json") if is_run else read_mapping(path)
        said = {**source, **source.get("run", {})}
        return said.get("tune_process", said.get("keep_freed_memory", True)) is not False
    except (ConfigError, OSError, ValueError, TypeError, AttributeError):
        return True  # it is refused later, with the reason


def tune_process(settings: RunSettings) -> None:
    """Take the measures that need no restart of the process, if the run's settings allow it.

    They last until the process ends: of several runs in one process, the first decides.
    """
    if settings.tune_process:
        keep_freed_memory()
        give_numpy_one_thread()


def give_numpy_one_thread() -> bool:
    """Let numpy's matrix library (OpenBLAS) work with one thread, here and in child processes.

    Its waiting threads spin, and so do torch's: with two of each on two cores, DQN's update on
    numpy took fifteen times as long. The products that go through numpy are too small to share.

    Returns:
        Whether it does so now. False, and nothing is changed, if the environment holds a setting
        of the user's (`OPENBLAS_NUM_THREADS`).
    """
    if _NUMPY_THREADS in os.environ:
        return False
    import torch  # here, because `before_torch_loads` must be importable without it
    from threadpoolctl import ThreadpoolController

    os.environ[_NUMPY_THREADS] = "1"  # read by the numpy of worker processes
    torch_home = torch.__path__[0]
    for library in ThreadpoolController().select(internal_api="openblas").lib_controllers:
        # Some builds of torch bring an OpenBLAS of their own, whose threads are --num-threads.
        if not Path(library.filepath).is_relative_to(torch_home):
            library.set_num_threads(1)
    return True
