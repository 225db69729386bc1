"""What a run changes about its whole process: every measure, in this file.

Nothing here happens on import. A run takes these measures unless `--no-tune-process` says
otherwise, and an environment variable of the user's switches each one off alone; docs/speed.md
lists them with what they gain.

| measure | function |
|---|---|
| OpenMP's idle threads sleep after 0.2 ms | `before_torch_loads` |
| glibc keeps freed memory | `keep_freed_memory` |
| numpy's matrix library works with one thread | `give_numpy_one_thread` |

How many threads torch gets is no measure of this kind but a setting; see `threads.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

from redline.plain_files import read_json
from redline.train.settings import RunSettings

_SPIN_COUNT = "GOMP_SPINCOUNT"
_SPINS = "10000"  # 0.2 ms on an AMD EPYC: longer than most gaps between two operations of an update
_NUMPY_THREADS = "OPENBLAS_NUM_THREADS"

# Constants of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
# The largest threshold that glibc reaches by itself, and that its older releases accept. Larger
# blocks, such as those of a replay, are mapped one by one in any case.
_LARGEST_MMAP_THRESHOLD = 32 * 2**20


def before_torch_loads(resume: Path | str | None = None) -> bool:
    """Let OpenMP's idle threads sleep after 0.2 ms instead of 5.

    A thread of GNU's OpenMP that has finished its share spins before it sleeps: 300,000 times by
    default, which takes 5 ms on an AMD EPYC. Meanwhile it keeps its core from environments that
    step in threads of their own, such as EnvPool's. The library reads the environment once, when
    torch is loaded, so this must come first; processes started from this one inherit it.

    Args:
        resume: run directory to go on with; its settings may forbid it.

    Returns:
        Whether the variable was set. False, and nothing is changed, if torch is loaded already, or
        if the environment holds a setting of the user's (`GOMP_SPINCOUNT`, `OMP_WAIT_POLICY`).
    """
    is_path = isinstance(resume, (str, os.PathLike))  # else it is refused, with the reason
    if is_path and not _may_tune(Path(resume)):
        return False
    if "torch" in sys.modules or any(n in os.environ for n in (_SPIN_COUNT, "OMP_WAIT_POLICY")):
        return False
    os.environ[_SPIN_COUNT] = _SPINS
    return True


def _may_tune(run_directory: Path) -> bool:
    # Read as plain data: to check the settings of a user's algorithm may import torch.
    try:
        run = read_json(run_directory / "config.json")["run"]
        return run.get("tune_process", run.get("keep_freed_memory", True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True  # resuming will refuse this directory, with the reason


def tune_process(settings: RunSettings) -> None:
    """Take the measures that need no restart of the process, if the run's settings allow it.

    They last until the process ends: of several runs in one process, the first decides.
    """
    if settings.tune_process:
        keep_freed_memory()
        give_numpy_one_thread()


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for what it allocates next.

    glibc returns large blocks to the system and maps new ones for the next update, whose pages
    are then zeroed again at first use. Minibatches and activations of images are such blocks. In
    exchange the process holds its peak memory until it ends, and some more where blocks of
    different sizes leave gaps.

    Returns:
        Whether it does so now. False, and nothing is changed, with another C library than glibc,
        or if the environment holds settings of the user's (`MALLOC_TRIM_THRESHOLD_`,
        `MALLOC_MMAP_THRESHOLD_`, `glibc.malloc...` in `GLIBC_TUNABLES`).
    """
    chosen = any(n in os.environ for n in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"))
    if chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or not _is_glibc():
        return False
    library = _c_library()
    # In this order: setting either threshold ends glibc's own adaptation of the other, so a
    # refused first one must leave the second alone.
    return bool(
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        and library.mallopt(_TRIM_THRESHOLD, _NEVER)
    )


@cache
def _c_library() -> ctypes.CDLL:
    # Kept: each one made is a cycle of Python objects.
    return ctypes.CDLL(None)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # this system does not know the question
        return False


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
