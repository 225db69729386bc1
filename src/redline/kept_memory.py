"""Freed memory that the process keeps, where the C library would return it to the system."""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Constants of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
# The largest threshold that glibc reaches by itself, and that its older releases accept. Larger
# blocks, such as those of a replay, are mapped one by one in any case.
_LARGEST_MMAP_THRESHOLD = 32 * 2**20

__all__ = ["keep_freed_memory"]


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for what it allocates next.

    glibc returns large blocks to the system and maps new ones for the next update, whose pages
    are then zeroed again at first use. Minibatches and activations of images are such blocks, and
    the slices of a profile session that is read. In exchange the process holds its peak memory
    until it ends, and some more where blocks of different sizes leave gaps.

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
