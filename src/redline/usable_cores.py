"""How many cores this process may really use: by its affinity and by its control groups."""

from __future__ import annotations

import math
import os
from pathlib import Path

from redline.control_groups import MEMBERSHIP, MOUNT, own_groups

__all__ = ["usable_cpus"]


def usable_cpus(cgroup: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Cores by affinity and control groups, whichever allows fewer; at least 1.

    Args:
        cgroup: where control groups are mounted.
        membership: the kernel's list of this process's groups.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quotas = map(_quota, own_groups("cpu", cgroup, membership))
    return max(1, min([count, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(group: Path) -> float | None:
    """Cores that a control group's quota is worth; None if there is no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota = _read(group / "cpu.cfs_quota_us")
        period = _read(group / "cpu.cfs_period_us")
    if quota in ("", "max", "-1") or period in ("", "0"):
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
