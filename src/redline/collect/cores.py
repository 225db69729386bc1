"""How many cores this process may really use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def available_cores(cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """Cores that the affinity mask and the cgroup's quota leave, at least 1.

    Args:
        cgroup_limit: the cgroup v2 file "quota period", in us; "max" means no quota.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, -(-int(quota) // int(period))))
