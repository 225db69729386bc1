"""What becomes of memory that a training process frees.

glibc gives large blocks back to the system and asks for new ones in the next update, whose pages
are mapped and zeroed again at their first use. Minibatches and activations of images are such
blocks: of PPO's updates on Atari that was a tenth of the time (measured with 256 images of 84x84
on an AMD EPYC), more on hosts that give memory to virtual machines page by page.
"""

from __future__ import annotations

import ctypes
import os

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
# The most that glibc comes to by itself, and the most that its older releases take. Larger blocks,
# such as those of a replay, are mapped one by one as ever.
_LARGEST_KEPT = 32 * 2**20
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for what it allocates next, until it ends.

    It takes as much memory as it ever needed at one time, and some more where blocks of different
    sizes leave gaps.

    Returns:
        Whether that is so now. False, and nothing is changed, with another C library than glibc,
        and where the environment holds settings of glibc's own for it (`MALLOC_TRIM_THRESHOLD_`,
        `MALLOC_MMAP_THRESHOLD_`, `glibc.malloc...` in `GLIBC_TUNABLES`).
    """
    chosen = any(name in os.environ for name in _OWN_SETTINGS)
    if chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or not _is_glibc():
        return False
    library = ctypes.CDLL(None)
    # In this order: whichever is set first ends glibc's own adapting of the other.
    return bool(
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and library.mallopt(_TRIM_THRESHOLD, _NEVER)
    )


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # no such question on this system
        return False
