"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """By its affinity, where the system has one; at least 1."""
    find = getattr(os, "sched_getaffinity", None)
    return len(find(0)) if find is not None else os.cpu_count() or 1
