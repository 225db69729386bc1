"""How many cores this process may really use: by its affinity and by its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")

__all__ = ["usable_cpus"]


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Cores by affinity and control group, whichever allows fewer; at least 1.

    Args:
        cgroup: where control groups are mounted.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores that the control group's quota is worth; None if there is no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us")
    if quota in ("", "max", "-1") or period in ("", "0"):
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
